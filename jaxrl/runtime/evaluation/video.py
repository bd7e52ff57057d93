"""Writing of GIF and MP4 files from captioned pictures."""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from jaxrl.runtime.system.disk import at_home, new_file, without_links

if TYPE_CHECKING:
    import numpy as np
    from PIL.Image import Image

CAPTION = 24
"""Height of the caption, in pixels."""

FASTEST = {".gif": 50, ".mp4": 240}
"""Extension -> pictures per second, at most."""

PAPER, INK = "#ffffff", "#24292f"


def captioned(picture: np.ndarray, text: str) -> Image:
    """Add a line of text above the picture; both sides become even, as video encoders require."""
    from PIL import Image, ImageDraw, ImageFont

    height, width = (side + side % 2 for side in picture.shape[:2])
    whole = Image.new("RGB", (width, height + CAPTION), PAPER)
    whole.paste(Image.fromarray(picture), (0, CAPTION))
    ImageDraw.Draw(whole).text((6, CAPTION / 2), text, fill=INK, font=ImageFont.load_default(13), anchor="lm")
    return whole


class Shot(NamedTuple):
    """A picture and the time for which it is shown."""

    picture: Image
    seconds: float


def check_film(out: str | os.PathLike[str], fps: float) -> Path:
    """Check that a GIF or MP4 can be written, create its folder, and return its path. Call it before the episodes are played.

    Raises:
      ValueError: the extension or the speed is not supported.
      OSError: the file cannot be written to.
      ModuleNotFoundError: the package needed for MP4 is not installed.
    """
    path = at_home(out)
    if path.suffix.lower() not in WRITERS:
        raise ValueError(f"out={os.fspath(out)!r} must end in {' or '.join(WRITERS)}")
    fastest = FASTEST[path.suffix.lower()]
    if not 0.1 <= fps <= fastest:
        raise ValueError(f"fps={fps:g} must be a number from 0.1 to {fastest} for a {path.suffix[1:].upper()}")
    if path.suffix.lower() == ".mp4":
        _import_ffmpeg()
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with open(path, "ab", opener=without_links):
            pass
    except OSError as error:
        reason = "it is a folder" if path.is_dir() else error.strerror
        raise OSError(f"out={os.fspath(out)!r} cannot be written to: {reason}. Name a writable file") from None
    if not path.stat().st_size:
        path.unlink()
    return path


def write_film(path: Path, shots: Iterable[Shot], fps: float) -> None:
    """Write the shots, all of one size, in the format of the extension of ``path``. An existing file is replaced at the end."""
    unfinished = path.with_name(f".{path.stem}.unfinished{path.suffix}")
    new_file(unfinished).close()
    try:
        WRITERS[path.suffix.lower()](unfinished, shots, fps)
        os.replace(unfinished, path)
    finally:
        unfinished.unlink(missing_ok=True)


def _write_gif(path: Path, shots: Iterable[Shot], fps: float) -> None:
    from PIL.Image import Dither

    def frames() -> Iterator[Image]:
        due, encoded = 0.0, 0  # hundredths of a second, the time unit of GIF
        for shot in shots:
            due += 100 * shot.seconds
            frame = shot.picture.quantize(256, dither=Dither.NONE)
            frame.info["duration"] = 10 * max(1, round(due) - encoded)
            encoded += frame.info["duration"] // 10
            yield frame

    rest = frames()
    next(rest).save(path, save_all=True, append_images=rest, loop=0)


def _write_mp4(path: Path, shots: Iterable[Shot], fps: float) -> None:
    film = None
    try:
        for shot in shots:
            if film is None:
                film = _import_ffmpeg().write_frames(str(path), shot.picture.size, fps=fps, quality=8, macro_block_size=2)
                with warnings.catch_warnings():  # JAX warns of all forks, but this one executes ffmpeg at once
                    warnings.filterwarnings("ignore", message=r"os\.fork\(\) was called", category=RuntimeWarning)
                    film.send(None)
            for _ in range(max(1, round(shot.seconds * fps))):
                film.send(shot.picture.tobytes())
    finally:
        if film is not None:
            film.close()


def _import_ffmpeg() -> Any:
    try:
        import imageio_ffmpeg
    except ModuleNotFoundError:
        message = 'an MP4 needs the package imageio-ffmpeg: pip install "jaxrl[video]", or write a GIF, which needs no package'
        raise ModuleNotFoundError(message, name="imageio_ffmpeg") from None
    return imageio_ffmpeg


WRITERS = {".gif": _write_gif, ".mp4": _write_mp4}
