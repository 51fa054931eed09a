"""Questions over pictures, answered in words: what a sample, its loss, its answer and its score are.

A sample has pictures and a text (question and answer); its key is the concept that it asks about. The model's own
processor makes its inputs: pixels, tokens, padding. The loss is over the tokens of the answer. An answer is what the
model says greedily. Where the question lists choices it is right or wrong, and wrong if no choice can be read from it,
which is counted as `unparsed`; otherwise its score is the token-F1 with the right sentence, with chrF beside it and
whatever a judge says, if the user gives one.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor, nn

from budgeted.errors import BudgetedError
from budgeted.limits import limited, refuse_outside_limits
from budgeted.models.llava import SHAPES, llava
from budgeted.models.llava_lora import SMALL, with_lora
from budgeted.models.llava_words import IGNORED, batch_of, padded_left
from budgeted.network import Inputs
from budgeted.problems.batches import Sample
from budgeted.problems.problem import PROBLEMS, Problem
from budgeted.replay import Column
from budgeted.streams import DatasetInfo
from budgeted.streams.bongard.answers import chosen, chrf, token_f1
from budgeted.streams.bongard.items import listed
from budgeted.streams.bongard.judge import KEY, Judge
from budgeted.streams.bongard.questions import PICTURES, TEXT, read

_OF_A_CHOICE, _OF_A_SENTENCE = 8, 64  # tokens


@dataclass(frozen=True)
class QuestionSettings:
    """Of `questions`."""

    longest_answer: int | None = limited(None, "at least 1")
    """tokens that an answer may have; it ends earlier where the model says so. If not given, 8 where questions list
    choices and 64 where they ask for a sentence"""
    multiple: int = limited(8, "at least 1")
    """texts are padded to a multiple of so many tokens: every length has its price"""
    judge: str = ""
    """address of a chat endpoint that scores sentences, up to /v1; a key for it is read from $BUDGETED_JUDGE_KEY"""
    judge_model: str = ""
    """the model that is asked there"""

    def __post_init__(self) -> None:
        refuse_outside_limits(self, "problem.")
        if bool(self.judge) != bool(self.judge_model):
            raise BudgetedError("a judge has an address and a model: give both problem.judge and problem.judge_model")


@PROBLEMS.register("questions")
class Questions(Problem):
    """Questions over several pictures, answered in words: right by the choice that is named, or by the sentence."""

    own_loss = True

    def __init__(
        self,
        processor: Any,
        input_shape: tuple[int, int, int],
        pictures: int,
        longest_text: str,
        settings: QuestionSettings | None = None,
        *,
        device: torch.device | str = "cpu",
    ) -> None:
        """
        processor: the model's own, as transformers has it.
        input_shape: of one picture, as samples have it; the processor brings it to the model's size.
        pictures: how many a sample has.
        longest_text: of a question and its answer, with a zero between them.
        """
        self.processor, self.pictures, self.device = processor, pictures, device
        self.input_shape = input_shape
        self.settings = settings or QuestionSettings()
        self.text = len(longest_text.encode())
        self._longest = longest_text
        address, sentences = self.settings.judge, not listed(longest_text)
        if address and not sentences:
            raise BudgetedError("problem.judge scores sentences, and these questions list choices: leave it out")
        if sentences:
            chrf("", "")  # it needs a package: better refused now than at the first evaluation
        self._judge = Judge(address, self.settings.judge_model, os.environ.get(KEY, "")) if address else None
        self._longest_answer = self.settings.longest_answer or (_OF_A_SENTENCE if sentences else _OF_A_CHOICE)

    # -- samples -----------------------------------------------------------------------------------------------

    def columns(self) -> tuple[Column, ...]:
        return (
            Column(PICTURES, (self.pictures, *self.input_shape), torch.uint8),
            Column(TEXT, (self.text,), torch.uint8),
        )

    def noise(self, generator: np.random.Generator) -> Sample:
        """Pictures of noise, and the longest question."""
        pictures = generator.integers(0, 256, (self.pictures, *self.input_shape), np.uint8)
        code = torch.frombuffer(bytearray(self._longest.encode()), dtype=torch.uint8)
        return {PICTURES: torch.from_numpy(pictures), TEXT: code}

    # -- the network's side ------------------------------------------------------------------------------------

    def inputs(self, samples: Any, generator: np.random.Generator | None = None) -> Inputs:
        return self._made(samples)

    def example(self, batch: int) -> Inputs:
        """As long as the longest text."""
        return {
            name: torch.empty((batch * len(one), *one.shape[1:]), dtype=one.dtype, device="meta")
            for name, one in self._longest_inputs.items()
        }

    @cached_property
    def _longest_inputs(self) -> dict[str, Tensor]:
        """Without data: of one sample with the longest text."""
        one = dict(self.noise(np.random.default_rng(0)))
        return {name: part.to("meta") for name, part in self._made({k: v[None] for k, v in one.items()}).items()}

    def _made(self, samples: Mapping[str, Tensor]) -> dict[str, Tensor]:
        words = [read(row) for row in samples[TEXT].cpu().numpy()]
        shown = samples[PICTURES].cpu().numpy().transpose(0, 1, 3, 4, 2)
        made = batch_of(
            self.processor,
            [question for question, _ in words],
            [list(row) for row in shown],
            [answer for _, answer in words],
            self.settings.multiple,
        )
        return {name: tensor.to(self.device) for name, tensor in made.items()}

    def loss(self, outputs: Any, inputs: Any, rows: Tensor) -> Tensor:
        """The model computes it, since it is given the labels."""
        loss: Tensor = outputs.loss
        return loss

    def respond(self, model: nn.Module, inputs: Inputs) -> list[str]:
        """What the model says to the questions, greedily."""
        assert isinstance(inputs, Mapping)
        asked = padded_left(inputs, self.processor.tokenizer.pad_token_id)
        said = model.generate(  # type: ignore[operator]
            **asked,
            pixel_values=inputs["pixel_values"],
            max_new_tokens=self._longest_answer,
            do_sample=False,
            pad_token_id=self.processor.tokenizer.pad_token_id,
        )
        return self._texts(said[:, asked["input_ids"].shape[1] :])

    def answer(self, outputs: Any) -> list[str]:
        return list(outputs) if isinstance(outputs, list) else []

    def score(self, outputs: Sequence[str], inputs: Any, rows: Tensor) -> Tensor:
        return torch.tensor(
            [
                float(chosen(said, choices) == right) if choices else token_f1(said, right)
                for said, right, choices in zip(outputs, *self._asked(inputs), strict=True)
            ]
        )

    def beside_score(self, outputs: Sequence[str], inputs: Any, rows: Tensor) -> dict[str, Tensor]:
        """`unparsed`: answers from which none of the listed choices can be read. Of sentences `chrf`, and with a judge
        `judge` (from 1 to 10, where it gave a score) and `judge_failures` (where it gave none)."""
        answers, choices = self._asked(inputs)
        asked = list(zip(outputs, answers, choices, strict=True))
        found = {}
        if any(choices):
            unread = [bool(some) and chosen(said, some) is None for said, _, some in asked]
            found["unparsed"] = torch.tensor(unread)
        if sentences := [(said, right) for said, right, some in asked if not some]:
            found["chrf"] = torch.tensor([chrf(said, right) for said, right in sentences])
            if self._judge is not None:
                judged = self._judge.score(sentences)
                found["judge"] = torch.tensor([score or 0.0 for score in judged.scores])
                found["judge_failures"] = torch.tensor([score is None for score in judged.scores])
        return found

    def _asked(self, inputs: Mapping[str, Tensor]) -> tuple[list[str], list[tuple[str, ...]]]:
        """The right answers, and the choices that the questions list."""
        tokens, of_answer = inputs["input_ids"], inputs["labels"] != IGNORED
        of_question = inputs["attention_mask"].bool() & ~of_answer
        answers = self._texts([row[mask] for row, mask in zip(tokens, of_answer, strict=True)])
        questions = self._texts([row[mask] for row, mask in zip(tokens, of_question, strict=True)])
        return answers, [listed(question) for question in questions]

    def _texts(self, tokens: Any) -> list[str]:
        return [text.strip() for text in self.processor.tokenizer.batch_decode(tokens, skip_special_tokens=True)]

    def fits(self, network: Any) -> None:
        """Refuse a network that cannot say anything."""
        if not callable(getattr(network.model, "generate", None)):
            raise _no_words(type(network.model).__name__)

    # -- by name -----------------------------------------------------------------------------------------------

    @classmethod
    def settings_type(cls) -> type:
        return QuestionSettings

    @classmethod
    def made(cls, settings: Mapping[str, Any]) -> Self:
        """For the tiny LLaVA and drawn concept questions."""
        from budgeted.streams import known_info  # all readers: they are not needed before

        info = known_info("bongard-drawn-ca")
        assert info is not None
        return cls.of_data(settings, info, _tiny(), "cpu")

    @classmethod
    def of_data(cls, settings: Mapping[str, Any], info: DatasetInfo, model: nn.Module, device: str) -> Self:
        processor = getattr(model, "processor", None)
        if processor is None:
            raise _no_words(type(model).__name__)
        if not info.longest_text:
            raise BudgetedError(f"{info.name} has no questions: give a data set that has, such as bongard-drawn-ca")
        return cls(
            processor,
            info.input_shape,
            info.pictures,
            info.longest_text,
            QuestionSettings(**settings),
            device=device,
        )

    def small_model(self) -> nn.Module:
        return _tiny()


def _tiny() -> nn.Module:
    """The tiny LLaVA, not pretrained."""
    from budgeted.problems.llava_base import drawn_processor  # here, since it needs transformers

    model: Any = with_lora(llava("llava-tiny", seed=1), SMALL, seed=1)
    model.processor = drawn_processor()
    return model  # type: ignore[no-any-return]


def _no_words(what: str) -> BudgetedError:
    return BudgetedError(
        f"{what} has no processor for questions over pictures: give --model {', '.join(SHAPES)}, or one of your own "
        "with an attribute `processor` and a method `generate`"
    )
