"""Rows of conversations about images: tokens with those of the images, a loss mask, the files."""

import io
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from trainer_core.data.arrow import ArrowRows
from trainer_core.data.encode import Encoder
from trainer_core.data.image_rows import digits_of
from trainer_core.data.images import decoded, found_image
from trainer_core.data.layout import Layout
from trainer_core.data.row_encoder import EncodingSetup, Numbered, Outcomes, as_they_are
from trainer_core.data.rows import BadRow, Encoded, Pictured, Place
from trainer_core.data.token_rows import token_example
from trainer_core.errors import InvalidSpec
from trainer_core.spec import MultimodalTask
from trainer_core.task_facts import block_of

MAX_LENGTH = 2048
MAX_PIXELS = 768 * 768
IGNORED = -100
_LAYOUT = Layout(
    {"input_ids": "ints", "labels": "ints", "text": "text", "images": "files"},
    ("input_ids",),
    ("labels",),
)
_DEFAULT_LOSS = {"image_messages": "assistant", "image_prompt_completion": "completion"}


@dataclass(frozen=True, slots=True)
class PicturedRow:
    """Tokens as the processor makes them of `text` and the images; `labels` are aligned."""

    tokens: Encoded
    text: str
    images: list[bytes]

    @property
    def place(self) -> Place:
        """Where it stood in its source."""
        return self.tokens.place

    @property
    def values(self) -> Mapping[str, Any]:
        """Tokens, labels, and what the processor makes the model's inputs of."""
        return {**self.tokens.values, "text": self.text, "images": self.images}

    @property
    def longest(self) -> int:
        """Its tokens, those of its images included."""
        return self.tokens.longest

    @property
    def trained(self) -> int:
        """Tokens that carry loss."""
        return self.tokens.trained

    @property
    def content(self) -> Sequence[int]:
        """Its tokens, and hashes of its images."""
        return [*self.tokens.input_ids, *(n for image in self.images for n in digits_of(image))]

    @property
    def answer(self) -> Sequence[int]:
        """The tokens that carry loss."""
        return self.tokens.answer


class PicturedRows:
    """One row a conversation; images above `max_pixels` are made smaller, none is ever cut."""

    staged = final = _LAYOUT

    def __init__(self, setup: EncodingSetup) -> None:
        task = block_of(setup.spec, MultimodalTask)
        self._loss_on = task.loss_on
        self._most_pixels = task.max_pixels or MAX_PIXELS
        self._tokenizer = setup.tokenizer
        self._processor = setup.processor
        template = setup.chat_template()
        self._encoder = Encoder(setup.tokenizer, template, task.train_on_eot, whole=True)
        self._token = image_token(setup.processor)
        self._token_id = setup.tokenizer.convert_tokens_to_ids(self._token)
        self.max_length = self.row_limit = task.max_length or MAX_LENGTH

    def encode(self, samples: Numbered, format_: str, field: str) -> Outcomes:  # noqa: ARG002 - the protocol's
        """Tokens, labels and images, a sample at a time: images are large."""
        loss_on = self._loss_on or _DEFAULT_LOSS[format_]
        for place, sample in samples:
            try:
                yield place, self._row(place, sample, loss_on)
            except BadRow as problem:
                yield place, problem

    def cut(self, row: PicturedRow, *, keep_end: bool) -> PicturedRow:
        """Never asked for: a cut could go through an image."""
        raise NotImplementedError

    def split(self, row: PicturedRow) -> Sequence[PicturedRow]:
        """Never asked for."""
        raise NotImplementedError

    def arrange(self, rows: ArrowRows, chosen: Sequence[int]) -> Iterator[Mapping[str, Any]]:
        """The rows as they are."""
        return as_they_are(rows, chosen)

    def facts(self) -> dict[str, Any]:
        """Nothing beside the rows."""
        return {}

    def example(self, row: PicturedRow) -> dict[str, Any]:
        """The text with one token for each image, and the parts of it that are trained."""
        trained = token_example(row.tokens, self._tokenizer)["trained"]
        return {"text": row.text, "trained": trained}

    def _row(self, place: Place, sample: Any, loss_on: str) -> PicturedRow:
        if not isinstance(sample, Pictured):
            raise TypeError(f"a conversation with images expected, not {type(sample).__name__}")
        fitted = [self._fitted(*found_image(image, "images", place)) for image in sample.images]
        [(_, outcome)] = self._encoder.encode([(place, sample.conversation)], loss_on)
        if isinstance(outcome, BadRow):
            raise outcome
        text = self._encoder.render(sample.conversation, loss_on).text
        pictures = [picture for _, picture in fitted]
        return PicturedRow(
            self._expanded(outcome, text, pictures), text, [data for data, _ in fitted]
        )

    def _fitted(self, data: bytes, name: str) -> tuple[bytes, Any]:
        """The image file and what it shows, made smaller where it has too many pixels."""
        picture = decoded(data, name)
        pixels = picture.width * picture.height
        if pixels <= self._most_pixels:
            return data, picture
        scale = math.sqrt(self._most_pixels / pixels)
        size = (max(1, int(picture.width * scale)), max(1, int(picture.height * scale)))
        smaller = picture.resize(size)  # Pillow's own choice for photographs: bicubic
        buffer = io.BytesIO()
        smaller.save(buffer, "PNG")
        return buffer.getvalue(), smaller

    def _expanded(self, short: Encoded, text: str, pictures: list[Any]) -> Encoded:
        """The row with all tokens of its images, which carry no loss.

        Raises InvalidSpec for a template that does not write every image.
        """
        places = [i for i, token in enumerate(short.input_ids) if token == self._token_id]
        for place in places:
            short.labels[place] = IGNORED  # with `loss_on: all` too
        if len(places) != len(pictures):
            raise InvalidSpec(
                f"the chat template writes {self._token} {len(places)} times for "
                f"{len(pictures)} images: use the model's own template, or give one that writes it "
                "for each part of type 'image'",
                "task.chat_template",
            )
        whole = self._tokens(text, pictures)
        labels = _around_images(short, whole)
        if labels is None:
            labels = self._between_images(short, whole, pictures, places)
        return Encoded(short.place, whole, labels)

    def _between_images(
        self, short: Encoded, whole: list[int], pictures: list[Any], places: list[int]
    ) -> list[int]:
        """Labels of a row that has something to learn between two images; raises BadRow."""
        runs = [self._tokens(self._token, [picture]) for picture in pictures]
        ids: list[int] = []
        labels: list[int] = []
        for number, (before, after) in enumerate(pairwise([-1, *places, len(short.input_ids)])):
            ids += short.input_ids[before + 1 : after]
            labels += short.labels[before + 1 : after]
            if number < len(runs):
                ids += runs[number]
                labels += [IGNORED] * len(runs[number])
        if ids != whole:
            raise BadRow("its text becomes other tokens beside its images than alone")
        return labels

    def _tokens(self, text: str, pictures: list[Any]) -> list[int]:
        try:
            made = self._processor(text=[text], images=[pictures], add_special_tokens=False)
        except ValueError as error:
            reason = (str(error).splitlines() or ["no reason given"])[0][:200]
            raise BadRow(f"the model's processor refuses it: {reason}") from error
        return [int(token) for token in made["input_ids"][0]]


def _around_images(short: Encoded, whole: list[int]) -> list[int] | None:
    """Labels of `whole`, which is `short` but for a stretch in its middle: that of the images.

    None where something in the middle is to be learned.
    """
    most = min(len(short.input_ids), len(whole))
    begin = _shared(short.input_ids, whole, most)
    end = _shared(short.input_ids[::-1], whole[::-1], most - begin)
    stop = len(short.labels) - end
    if any(label != IGNORED for label in short.labels[begin:stop]):
        return None
    gap = [IGNORED] * (len(whole) - begin - end)
    return [*short.labels[:begin], *gap, *short.labels[stop:]]


def _shared(one: Sequence[int], other: Sequence[int], most: int) -> int:
    """How many tokens both begin with, `most` at most."""
    pairs = zip(one[:most], other, strict=False)
    return next((i for i, (a, b) in enumerate(pairs) if a != b), most)


def image_token(processor: Any) -> str:
    """What stands for an image in a text; raises InvalidSpec for a processor that has none."""
    found = getattr(processor, "boi_token", None) or getattr(processor, "image_token", None)
    if not found:
        raise InvalidSpec(
            f"the model's processor ({type(processor).__name__}) does not say which token stands "
            "for an image: use a vision-language model with an `image_token`",
            "model.name_or_path",
        )
    return str(found)
