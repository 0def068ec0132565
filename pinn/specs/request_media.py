"""Images or audio clips that every request of a workload contains."""

from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from pinn.errors import PinnError
from pinn.specs.audio import AudioReader
from pinn.specs.images import ImageReader, parse_size
from pinn.specs.media import MediaItem, Unread

IMAGE, AUDIO = "image", "audio"
#: Command-line options by type of media. The first option of each type requests it.
OPTIONS = {
    IMAGE: ("--images-per-request", "--image-size"),
    AUDIO: ("--audio-seconds", "--audios-per-request"),
}
WORDS = {IMAGE: "images", AUDIO: "audio"}
#: Maximum length of an audio clip in seconds: one day.
MOST_AUDIO_S = 86_400.0


@runtime_checkable
class MediaFlags(Protocol):
    """Flags of commands that specify the images or audio clips of each request."""

    @property
    def images_per_request(self) -> int:
        """Return the number of images per request; 0 without images."""

    @property
    def image_size(self) -> str:
        """Return the size of each image in pixels, such as ``1024x768``."""

    @property
    def audios_per_request(self) -> int:
        """Return the number of audio clips per request; it is used only if they have a length."""

    @property
    def audio_seconds(self) -> float:
        """Return the length of each audio clip in seconds; 0 without audio."""


@dataclass(frozen=True)
class RequestMedia:
    """Images of one size, or audio clips of one length, at consecutive positions in every prompt.

    Attributes:
        kind: ``image`` or ``audio``.
        count: Number of images or clips.
        size: Pixels of each image, such as ``1024x768``, or seconds of each clip.
        item: Tokens and encoder work of each image or clip.
        first_token: Number of prompt tokens before the first image or clip.
    """

    kind: str
    count: int
    size: str
    item: MediaItem
    first_token: int = 0

    @property
    def tokens(self) -> int:
        """Return the number of prompt tokens of one image or audio clip."""
        return self.item.tokens

    @property
    def prompt_tokens(self) -> int:
        """Return the number of prompt tokens of all images or audio clips of a request."""
        return self.count * self.tokens

    @property
    def title(self) -> str:
        """Return the number and size of a request's images or audio clips, as text."""
        if self.kind == IMAGE:
            return f"{self.count} image{'s'[: self.count > 1]} of {self.size}"
        return f"{self.count} audio clip{'s'[: self.count > 1]} of {self.size} s"

    def begun_in(self, cached: int, new: int) -> int:
        """Return how many images or clips begin in ``new`` prompt tokens after ``cached`` ones.

        >>> images = RequestMedia(IMAGE, 3, "32x32", MediaItem(4, 4, 16, 16), first_token=2)
        >>> [images.begun_in(0, 2), images.begun_in(0, 3), images.begun_in(3, 100)]
        [0, 1, 2]
        """
        of = self.first_token, self.tokens, self.count
        return items_begun(cached + new, *of) - items_begun(cached, *of)


def media_options(images: object, audio: object) -> str:
    """Return the options for images and audio that a model supports, as text; empty for none."""
    readers = {IMAGE: images, AUDIO: audio}
    known = (ImageReader, AudioReader)
    return " or ".join(OPTIONS[kind][0] for kind, r in readers.items() if isinstance(r, known))


def items_begun(position: float, first_token: int, tokens: int, count: int) -> int:
    """Return how many of ``count`` images or clips begin before a position of the prompt."""
    return int(min(max(-((first_token - position) // tokens), 0), count))


def asked_kind(flags: MediaFlags) -> str:
    """Return the type of media that the flags request, ``image`` or ``audio``, or else "".

    Raises:
        PinnError: If images and audio are both given, or audio clips without their length.
    """
    audio = flags.audio_seconds > 0
    if flags.images_per_request and audio:
        raise PinnError(
            "--images-per-request and --audio-seconds cannot be used together: give one of the "
            "two, and count the tokens of the other in --input-len"
        )
    if flags.audios_per_request != 1 and not audio:
        raise PinnError(
            "--audios-per-request is given without the length of each clip: give --audio-seconds"
        )
    return IMAGE if flags.images_per_request else AUDIO if audio else ""


def request_media(
    images: ImageReader | Unread | None,
    audio: AudioReader | Unread | None,
    name: str,
    flags: MediaFlags,
    first_token: int = 0,
) -> RequestMedia | None:
    """Return the images or audio clips of each prompt; None if the flags request none.

    Args:
        images: Conversion of images into tokens; None without image input.
        audio: Conversion of audio clips into tokens; None without audio input.
        name: Name of the model, for error messages.
        flags: Number and size of images, or of audio clips.
        first_token: Number of prompt tokens before the first image or clip.

    Raises:
        PinnError: If the number of tokens of the model's images or audio is unknown, or a size is
            wrong.
    """
    pixels, kind = parse_size(flags.image_size), asked_kind(flags)
    if not kind:
        return None
    reader: ImageReader | AudioReader | Unread | None = images if kind == IMAGE else audio
    if reader is None or isinstance(reader, Unread):
        part = {IMAGE: "vision", AUDIO: "audio"}[kind]
        reason = reader.reason if reader else f"its config.json has no {part}_config"
        fault = f"the number of tokens of {WORDS[kind]} of {name} is unknown, as {reason}"
        remedy = f"omit {OPTIONS[kind][0]}, and count these tokens in --input-len"
        raise PinnError(f"{fault}: {remedy}")
    if isinstance(reader, ImageReader):
        item, size, count = reader.item(*pixels), flags.image_size, flags.images_per_request
    else:
        seconds, count = flags.audio_seconds, flags.audios_per_request
        item, size = reader.item(seconds), f"{seconds:g}"
    return RequestMedia(kind, count, size, item, first_token)
