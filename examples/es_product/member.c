/* Write the parameters of a member of an evolution with noise "sign": theta + sigma * sign, little-endian float32, to stdout.
 *
 *   cc -O2 -ffp-contract=off -o member member.c
 *   ./member KEY0 KEY1 SIGMA MEMBER theta.f32 > params.f32      (numbers as `jaxrl es ask` prints them)
 */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

static void threefry(uint32_t k0, uint32_t k1, uint32_t *x, uint32_t *y) { /* Threefry-2x32, 20 rounds */
  static const int rotations[2][4] = {{13, 15, 26, 6}, {17, 29, 16, 24}};
  uint32_t keys[3] = {k0, k1, k0 ^ k1 ^ 0x1BD11BDA};
  *x += keys[0], *y += keys[1];
  for (int i = 0; i < 5; i++) {
    for (int j = 0; j < 4; j++) {
      int r = rotations[i % 2][j];
      *x += *y, *y = *x ^ (*y << r | *y >> (32 - r));
    }
    *x += keys[(i + 1) % 3], *y += keys[(i + 2) % 3] + i + 1;
  }
}

int main(int argc, char **argv) {
  if (argc != 6) return fprintf(stderr, "usage: member KEY0 KEY1 SIGMA MEMBER theta.f32\n"), 2;
  uint32_t k0 = strtoul(argv[1], 0, 10), k1 = strtoul(argv[2], 0, 10), member = strtoul(argv[4], 0, 10);
  float sigma = strtof(argv[3], 0), theta;
  FILE *file = fopen(argv[5], "rb");
  if (!file) return perror(argv[5]), 1;
  uint32_t a = 0, b = member / 2; /* the key of the pair */
  threefry(k0, k1, &a, &b);
  if (member % 2) sigma = -sigma; /* the second of a pair has opposite noise */
  for (uint32_t word = 0, i = 0; fread(&theta, 4, 1, file) == 1; i++) {
    if (i % 32 == 0) {
      uint32_t x = 0, y = i / 32;
      threefry(a, b, &x, &y), word = x ^ y;
    }
    theta += word >> i % 32 & 1 ? -sigma : sigma;
    fwrite(&theta, 4, 1, stdout);
  }
  return 0;
}
