/* Exact solver of Connect Four, 6 rows and 7 columns. Reads positions as columns played from 0, one per line, and writes for each
 * the scores of the seven moves, from the side of the player to move: 0 for a draw, n > 0 if the player wins with its n-th last
 * stone, −n if the other does, and . if the column is full. A larger score is better: a faster win, or a slower loss.
 *
 * Build: cc -O2 -o connect_four connect_four.c
 */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { ROWS = 6, COLUMNS = 7, HEIGHT = ROWS + 1, SQUARES = ROWS * COLUMNS, SLOTS = 1 << 23 };

typedef uint64_t Board; /* bit column * HEIGHT + row from below; the top bit of each column stays empty */

typedef struct {
    Board own, all; /* stones of the player to move, and of both */
    int moves;
} Position;

static Board column_mask(int column) { return (((Board)1 << ROWS) - 1) << (column * HEIGHT); }
static Board bottom(int column) { return (Board)1 << (column * HEIGHT); }

static Board bottoms(void) {
    Board all = 0;
    for (int column = 0; column < COLUMNS; column++) all |= bottom(column);
    return all;
}

static int has_line(Board stones) {
    static const int steps[] = {1, HEIGHT - 1, HEIGHT, HEIGHT + 1};
    for (int i = 0; i < 4; i++) {
        Board pairs = stones & (stones >> steps[i]);
        if (pairs & (pairs >> (2 * steps[i]))) return 1;
    }
    return 0;
}

static int can_play(Position p, int column) { return !(p.all & ((Board)1 << (column * HEIGHT + ROWS - 1))); }
static Board square(Position p, int column) { return (p.all + bottom(column)) & column_mask(column); }
static int wins(Position p, int column) { return has_line(p.own | square(p, column)); }

static Position play(Position p, int column) {
    Position after = {p.own ^ p.all, p.all | square(p, column), p.moves + 1};
    return after;
}

/* Table of upper bounds: the key of a position, which is unique, and its bound. */
static Board keys[SLOTS];
static int8_t bounds[SLOTS];

static int stones_left(Position p) { return (SQUARES - p.moves + 1) / 2; }

/* Empty squares that complete a line of these stones. */
static Board winning(Board own, Board all) {
    Board found = (own << 1) & (own << 2) & (own << 3), board = 0;
    for (int step = HEIGHT - 1; step <= HEIGHT + 1; step++) {
        Board pair = (own << step) & (own << 2 * step);
        found |= pair & ((own << 3 * step) | (own >> step));
        pair = (own >> step) & (own >> 2 * step);
        found |= pair & ((own >> 3 * step) | (own << step));
    }
    for (int column = 0; column < COLUMNS; column++) board |= column_mask(column);
    return found & (board ^ all) & board;
}

/* Moves after which the other player does not win at once, if this one cannot. */
static Board safe_moves(Position p) {
    Board moves = 0, danger = winning(p.own ^ p.all, p.all), forced;
    for (int column = 0; column < COLUMNS; column++) moves |= square(p, column);
    forced = moves & danger;
    if (forced & (forced - 1)) return 0;
    if (forced) moves = forced;
    return moves & ~(danger >> 1);
}

/* Score of a position in which the player to move does not win at once, as far as it is between alpha and beta. */
static int negamax(Position p, int alpha, int beta) {
    Board moves = safe_moves(p), key = p.own + p.all + bottoms();
    int least = -(SQUARES - 2 - p.moves) / 2, most = (SQUARES - 1 - p.moves) / 2;
    if (!moves) return -(SQUARES - p.moves) / 2;
    if (p.moves >= SQUARES - 2) return 0;
    size_t slot = key % (SLOTS - 9);
    if (keys[slot] == key && bounds[slot] < most) most = bounds[slot];
    if (alpha < least) alpha = least;
    if (beta > most) beta = most;
    if (alpha >= beta) return alpha < least ? least : beta;
    Position order[COLUMNS];
    int worth[COLUMNS], number = 0;
    for (int i = 0; i < COLUMNS; i++) {
        int column = COLUMNS / 2 + (1 - 2 * (i % 2)) * (i + 1) / 2, at;
        Board stone = moves & column_mask(column);
        if (!stone) continue;
        int value = __builtin_popcountll(winning(p.own | stone, p.all));
        for (at = number++; at > 0 && worth[at - 1] < value; at--) {
            order[at] = order[at - 1];
            worth[at] = worth[at - 1];
        }
        order[at] = play(p, column);
        worth[at] = value;
    }
    for (int i = 0; i < number; i++) {
        int score = -negamax(order[i], -beta, -alpha);
        if (score >= beta) return score;
        if (score > alpha) alpha = score;
    }
    keys[slot] = key;
    bounds[slot] = (int8_t)alpha;
    return alpha;
}

static int solve(Position p) {
    for (int column = 0; column < COLUMNS; column++)
        if (can_play(p, column) && wins(p, column)) return stones_left(p);
    if (p.moves == SQUARES) return 0;
    int low = -(SQUARES - p.moves) / 2, high = (SQUARES + 1 - p.moves) / 2;
    while (low < high) {
        int middle = low + (high - low) / 2;
        if (middle <= 0 && low / 2 < middle) middle = low / 2;
        else if (middle >= 0 && high / 2 > middle) middle = high / 2;
        int found = negamax(p, middle, middle + 1);
        if (found <= middle) high = found;
        else low = found;
    }
    return low;
}

int main(void) {
    char line[64];
    while (fgets(line, sizeof line, stdin)) {
        Position p = {0, 0, 0};
        for (char *at = line; *at >= '0' && *at < '0' + COLUMNS; at++) p = play(p, *at - '0');
        for (int column = 0; column < COLUMNS; column++) {
            if (!can_play(p, column)) printf(".");
            else printf("%d", wins(p, column) ? stones_left(p) : -solve(play(p, column)));
            printf(column < COLUMNS - 1 ? " " : "\n");
        }
        fflush(stdout);
    }
    return 0;
}
