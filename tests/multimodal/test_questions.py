"""Questions over pictures in the loop: inputs, loss, answers and scores against what they should be; a run by name."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from budgeted import models, streams
from budgeted.audit import ExecutedOnData
from budgeted.errors import BudgetedError
from budgeted.learner import Learner, Settings
from budgeted.learner.settings import LearnerSettings
from budgeted.methods import METHODS
from budgeted.models.llava_words import answers_of, batch_of, padded_left
from budgeted.problems import PROBLEMS, Questions
from budgeted.problems.llava_base import drawn_processor
from budgeted.problems.questions import QuestionSettings
from budgeted.runs import run as runs
from budgeted.runs.config import RunConfig
from budgeted.streams.bongard import SHORT, items_of
from budgeted.streams.bongard.answers import chrf
from budgeted.streams.bongard.judge import Judge, Judged
from budgeted.streams.bongard.sets import drawn_world
from tests.multimodal.small import drawn_base


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tiny LLaVA as it is drawn: what is tested here needs no pretraining."""
    folder = tmp_path_factory.mktemp("base")
    drawn_base(folder)
    return folder


@pytest.fixture(scope="module")
def data() -> streams.Dataset:
    return streams.load("bongard-drawn-ca")


def problem_of(data: streams.Dataset, model: Any) -> Questions:
    found = PROBLEMS["questions"].of_data({}, data.info, model, "cpu")
    assert isinstance(found, Questions)
    return found


def some(data: streams.Dataset, *places: int) -> dict[str, torch.Tensor]:
    found = data.train_images[np.array(places)]
    return {name: torch.from_numpy(array) for name, array in found.arrays.items()}


def test_samples_are_the_questions_of_the_drawn_world(data: streams.Dataset) -> None:
    items = items_of(drawn_world().train, "ca", SHORT)
    assert (len(items), data.classes, data.info.pictures) == (600, 30, 4)
    sample, label = data.sample(7)
    assert data.class_names[label] == items[7].concept
    words = bytes(sample["text"]).rstrip(b"\0").decode()
    assert words == f"{items[7].question}\0{items[7].answer}"
    for shown, name in zip(sample["pictures"], items[7].pictures, strict=True):
        assert np.array_equal(shown.numpy().transpose(1, 2, 0), drawn_world().picture(name))
    assert streams.stream_of(data, "domain", 1).boundaries() == (120, 240, 360, 480)


def test_inputs_are_the_processors_and_the_loss_is_over_the_answer(data: streams.Dataset, base: Path) -> None:
    model: Any = models.build(f"llava-tiny@{base}", seed=1)
    problem = problem_of(data, model)
    inputs = problem.inputs(some(data, 0, 1, 9))
    items = items_of(drawn_world().train, "ca", SHORT)
    chosen = [items[0], items[1], items[9]]
    pictures = [[drawn_world().picture(name) for name in item.pictures] for item in chosen]
    questions = [item.question for item in chosen]
    made = batch_of(model.processor, questions, pictures, [item.answer for item in chosen])
    assert isinstance(inputs, dict)
    assert all(torch.equal(inputs[name], made[name]) for name in made)
    example = problem.example(3)
    assert isinstance(example, dict)
    assert {name: len(one) for name, one in example.items()} == {name: len(one) for name, one in inputs.items()}
    assert example["input_ids"].shape[1] >= inputs["input_ids"].shape[1]
    with torch.no_grad():
        outputs = model(**inputs)
        said, right = outputs.logits[:, :-1].float().log_softmax(-1), inputs["labels"][:, 1:]
        of_answer = right >= 0
        expected = -said.gather(2, right.clamp(min=0)[..., None])[..., 0][of_answer].mean()
    assert problem.loss(outputs, inputs, torch.zeros(3)).item() == pytest.approx(expected.item(), rel=1e-5)
    assert of_answer.sum(1).tolist() == [
        len(model.processor.tokenizer(f" {item.answer}</s>").input_ids) for item in chosen
    ]
    asked = batch_of(model.processor, questions, pictures)
    left = padded_left(inputs, model.processor.tokenizer.pad_token_id)
    width = left["input_ids"].shape[1]
    assert torch.equal(left["input_ids"], asked["input_ids"][:, -width:])
    assert problem.respond(model.eval(), inputs) == answers_of(model, model.processor, asked, 8)


class Says:
    """In the place of a model: says what it is told to."""

    def __init__(self, processor: Any, texts: list[str]) -> None:
        self.tokens = processor.tokenizer(texts, padding=True, return_tensors="pt").input_ids

    def generate(self, input_ids: torch.Tensor, **_: Any) -> torch.Tensor:
        return torch.cat([input_ids, self.tokens], 1)


def test_answers_are_read_and_what_cannot_be_is_wrong_and_counted(data: streams.Dataset, base: Path) -> None:
    processor = drawn_processor()
    problem = problem_of(data, SimpleNamespace(processor=processor))
    samples, items = some(data, 0, 1, 2, 3), items_of(drawn_world().train, "ca", SHORT)[:4]
    wrong = next(choice for choice in items[1].choices if choice != items[1].answer)
    told = [items[0].answer, wrong, "ring", f"It is {items[3].answer}."]
    inputs = problem.inputs(samples)
    outputs = problem.respond(Says(processor, told), inputs)  # type: ignore[arg-type]
    assert problem.answer(outputs) == told
    assert problem.score(outputs, inputs, torch.zeros(4)).tolist() == [1, 0, 0, 1]
    assert problem.beside_score(outputs, inputs, torch.zeros(4))["unparsed"].tolist() == [False, False, True, False]


def test_sentences_are_scored_by_their_words(base: Path) -> None:
    longest = "What do they share? <image> Your answer is:\0a mint ring"
    problem = Questions(drawn_processor(), (3, 16, 16), 1, longest)
    sample = problem.noise(np.random.default_rng(0))
    inputs = problem.inputs({name: part[None] for name, part in dict(sample).items()})
    assert problem.score(["a ring"], inputs, torch.zeros(1)).item() == pytest.approx(2 * 2 / 5)
    assert {k: v.tolist() for k, v in problem.beside_score(["a ring"], inputs, torch.zeros(1)).items()} == {
        "chrf": [pytest.approx(chrf("a ring", "a mint ring"))]
    }


def test_a_judge_is_asked_about_sentences_and_its_failures_are_counted(
    base: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[tuple[Judge, list[tuple[str, str]]]] = []

    def score(judge: Judge, pairs: Iterable[tuple[str, str]]) -> Judged:
        asked.append((judge, list(pairs)))
        return Judged((7.0, None), ("the judge answered 500",))

    monkeypatch.setattr(Judge, "score", score)
    monkeypatch.setenv("BUDGETED_JUDGE_KEY", "secret")
    settings = QuestionSettings(judge="http://127.0.0.1:9/v1", judge_model="some-model")
    problem = Questions(drawn_processor(), (3, 16, 16), 1, "What? <image> Your answer is:\0a mint ring", settings)
    sample = dict(problem.noise(np.random.default_rng(0)))
    inputs = problem.inputs({name: torch.stack([part, part]) for name, part in sample.items()})
    found = problem.beside_score(["a ring", ""], inputs, torch.zeros(2))
    assert (found["judge"].tolist(), found["judge_failures"].tolist()) == ([7, 0], [False, True])
    assert problem.score(["a ring", ""], inputs, torch.zeros(2)).tolist() == [pytest.approx(0.8), 0]
    judge = Judge("http://127.0.0.1:9/v1", "some-model", "secret")
    assert asked == [(judge, [("a ring", "a mint ring"), ("", "a mint ring")])]
    with pytest.raises(BudgetedError, match=r"give both problem\.judge and problem\.judge_model"):
        QuestionSettings(judge="http://127.0.0.1:9/v1")
    with pytest.raises(BudgetedError, match="these questions list choices"):
        Questions(drawn_processor(), (3, 16, 16), 1, "<image> Choice List: [a, b] Your answer is:\0a", settings)


def test_a_sentence_may_be_longer_than_a_choice(base: Path) -> None:
    lengths = []

    class Silent:
        def generate(self, input_ids: torch.Tensor, max_new_tokens: int, **_: Any) -> torch.Tensor:
            lengths.append(max_new_tokens)
            return input_ids

    for text, settings in (
        ("What? <image> Your answer is:\0a mint ring", None),
        ("<image> Choice List: [a, b] Your answer is:\0a", None),
        ("What? <image> Your answer is:\0a mint ring", QuestionSettings(longest_answer=3)),
    ):
        problem = Questions(drawn_processor(), (3, 16, 16), 1, text, settings)
        sample = dict(problem.noise(np.random.default_rng(0)))
        inputs = problem.inputs({name: part[None] for name, part in sample.items()})
        assert problem.respond(Silent(), inputs) == [""]  # type: ignore[arg-type]
    assert lengths == [64, 8, 3]


@pytest.mark.parametrize(("freezing", "codec"), [("constant", "raw"), ("block-cyclic", "pictures")])
def test_the_ledger_has_what_was_executed(data: streams.Dataset, base: Path, freezing: str, codec: str) -> None:
    model = models.build(f"llava-tiny@{base}", seed=2)
    problem = problem_of(data, model)
    of_policy = {"n": 9} if freezing == "constant" else {"every": 2}
    settings = Settings(LearnerSettings(batch_size=2, optimizer="adamw"), freezing=of_policy)
    method = RunConfig(method="vanilla", freezing=freezing, codec=codec).build_method()
    learner = Learner(model, method, problem, iterations=1.0, settings=settings, seed=1)
    for place in range(3):
        learner.learn(*data.sample(place))
    spent = learner.ledger.spent
    with ExecutedOnData() as executed:
        for place in range(3, 9):
            learner.learn(*data.sample(place))
    assert learner.frozen_share > 0
    assert (learner.ledger.spent - spent).real == pytest.approx(executed.total, rel=0.01)


@pytest.fixture
def threads() -> Iterator[None]:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def test_a_run_by_name_is_killed_and_goes_on_bit_for_bit(base: Path, tmp_path: Path, threads: None) -> None:
    config = RunConfig(
        method="vanilla", dataset="bongard-drawn-pn", model=f"llava-tiny@{base}", stream="disjoint",
        freezing="adaptive", memory="1760kB", codec="pictures", iterations=0.3, batch_size=2, limit=30, eval_every=15,
        eval_samples=30, checkpoint_every=8, settings={"learner.optimizer": "adamw", "learner.learning_rate": "1e-3"},
    )  # fmt: skip

    def report(progress: runs.Progress) -> None:
        if progress.samples == 20:  # what a kill would leave behind at this moment
            shutil.copytree(tmp_path / "whole", tmp_path / "cut")

    whole = runs.start(config, tmp_path / "whole", report)
    again = runs.resume(tmp_path / "cut")
    assert again["sittings"] == 2
    for name in ("weights_sha256", "records_sha256", "spent", "bytes", "frozen_steps"):
        assert again[name] == whole[name], name
    assert 1_750_000 < whole["bytes"] <= 1_760_000
    assert whole["iterations"] == 9
    [*_, last] = [json.loads(line) for line in (tmp_path / "cut" / "records.jsonl").read_text().splitlines()]
    assert sum(last["correct"]) + last["beside"]["unparsed"] <= sum(last["total"]) <= 30
    assert last["stored"] < 30


def test_what_is_no_llava_is_refused_in_one_line(
    data: streams.Dataset, base: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(BudgetedError, match="has no processor for questions"):
        problem_of(data, models.build("mlp"))
    with pytest.raises(BudgetedError, match="has no questions"):
        PROBLEMS["questions"].of_data({}, streams.info("digits"), SimpleNamespace(processor=0), "cpu")  # type: ignore[arg-type]
    with pytest.raises(BudgetedError, match=r"problem\.multiple must be at least 1"):
        QuestionSettings(multiple=0)
    small: Any = nn.Linear(2, 2)
    small.processor = drawn_processor()
    with pytest.raises(BudgetedError, match=r"'der\+\+' has a loss of its own"):
        Learner(small, "der++", problem_of(data, small))
    for method in ("ocs", "memo", "sparcl", "rm", "clib"):
        with pytest.raises(BudgetedError, match=f"'{method}' .* the logits of classes"):
            Learner(small, method, problem_of(data, small), slots=9)
    for parts in ({"retrieval": "mir"}, {"selection": "aser"}):
        (part, name), *_ = parts.items()
        model, own = models.build(f"llava-tiny@{base}", seed=1), METHODS["er"]().with_parts(**parts)
        with pytest.raises(BudgetedError, match=f"{part} '{name}' looks at the logits of classes"):
            Learner(model, own, problem_of(data, model), slots=9)
    monkeypatch.setenv("BUDGETED_MODELS", "nowhere")
    with pytest.raises(BudgetedError, match="`budgeted run` makes it"):
        models.build("llava-tiny")
