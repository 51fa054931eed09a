"""The command line as scripts and people meet it: JSON with the right keys, one-line errors, config files."""

from __future__ import annotations

import csv
import json
import re
from pathlib import Path

import pytest
from rich.progress import Progress

from budgeted.cli import main
from budgeted.cli.commands import COMMANDS
from budgeted.methods import METHODS
from budgeted.runs import precision
from budgeted.runs.config import RunConfig
from tests.cli.small import MEMORY, QUICK, summaries
from tests.command_line import Capture, refused, said

# -- run ----------------------------------------------------------------------------------------------------------

SUMMARY_KEYS = {
    "a_auc", "a_last", "spent", "bytes", "slots", "iterations", "samples", "frozen_share", "train_seconds",
    "eval_seconds", "weights_sha256", "records_sha256", "seed", "config",
}  # fmt: skip


def test_run_prints_its_summary_as_json_and_nothing_else(tmp_path: Path, capsys: Capture) -> None:
    folder = tmp_path / "RUN"
    interface = [
        *["--method", "al-sar", "--dataset", "digits", "--stream", "gaussian", "--model", "resnet20"],
        *["--iterations", "1", "--slots", "200", "--seed", "1", "--out", str(folder)],
    ]
    small = ["--batch-size", "2", "--limit", "10", "--eval-samples", "20"]
    assert main(["run", *interface, *small, "--json"]) == 0
    shown = capsys.readouterr()
    assert shown.err == ""
    summary = json.loads(shown.out)
    assert summary == json.loads((folder / "summary.json").read_text())
    assert summary.keys() >= SUMMARY_KEYS
    assert summary["spent"].keys() == {"paper", "real"}
    assert (summary["samples"], summary["iterations"], summary["slots"], summary["seed"]) == (10, 10, 200, 1)
    assert re.fullmatch("[0-9a-f]{64}", summary["weights_sha256"])
    assert re.fullmatch("[0-9a-f]{64}", summary["records_sha256"])
    assert RunConfig.from_mapping(summary["config"], "summary").method == "al-sar"
    written = json.loads((folder / "config.json").read_text())
    assert re.fullmatch("[0-9a-f]{64}", written.pop("config_sha256"))
    assert written == summary["config"]
    assert {"torch", "threads", "cpu_capability"} <= json.loads((folder / "environment.json").read_text()).keys()


@pytest.mark.parametrize("wanted", [["--set", "learner.autocast=bfloat16"], ["--eval-precision", "bfloat16"]])
def test_run_says_that_the_processor_imitates_bfloat16(
    wanted: list[str], tmp_path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = ["run", *QUICK, *MEMORY, "--method", "vanilla", "--out"]
    for name, kernels, flags, told in (("a", False, wanted, 1), ("b", True, wanted, 0), ("c", False, [], 0)):
        monkeypatch.setattr(precision, "_has_kernels", lambda kernels=kernels: kernels)
        assert main([*run, str(tmp_path / name), *flags]) == 0
        assert capsys.readouterr().err.count("float32 (learner.autocast=none") == told


def test_run_is_quiet_where_there_is_no_terminal(tmp_path: Path, capsys: Capture) -> None:
    folder = tmp_path / "run"
    assert main(["run", *QUICK, *MEMORY, "--method", "vanilla", "--out", str(folder)]) == 0
    shown = capsys.readouterr()
    assert "\x1b" not in shown.out + shown.err
    assert "\r" not in shown.out + shown.err
    progress = shown.err.splitlines()
    assert len(progress) == 1  # plain lines come every twenty seconds, and one at the end
    for what in ("40/40 samples", "accuracy ", "A_AUC ", "spent ", "frozen "):
        assert what in progress[0]
    assert shown.out.splitlines()[-1] == f"ended with the stream; folder {folder}"
    assert "A_AUC" in shown.out


def test_the_progress_shows_the_a_auc_of_the_summary(tmp_path: Path, capsys: Capture) -> None:
    """At the end of the stream "A_AUC so far" is the A_AUC."""
    arguments = ["run", *QUICK, *MEMORY, "--eval-every", "7", "--method", "vanilla", "--out", str(tmp_path / "run")]
    assert main(arguments) == 0
    shown = capsys.readouterr()
    live, final = (re.search(r"A_AUC ([\d.]+) %", text) for text in (shown.err, shown.out))
    assert live is not None
    assert final is not None
    assert float(live[1]) == pytest.approx(float(final[1]), abs=0.06)


def test_progress_on_a_terminal_is_taken_down_also_after_an_error(
    tmp_path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A bar that is not stopped leaves the user's cursor hidden."""
    bars: list[Progress] = []

    class Noted(Progress):
        def start(self) -> None:
            bars.append(self)
            super().start()

    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setattr("budgeted.cli.run.Progress", Noted)
    arguments = ["run", *QUICK, *MEMORY, "--method", "vanilla"]
    try:
        assert main([*arguments, "--out", str(tmp_path / "good")]) == 0
        shown = capsys.readouterr().err
        assert "/40" in shown
        assert "A_AUC" in shown
        assert main([*arguments, "--set", "learner.learning_rate=1e30", "--out", str(tmp_path / "bad")]) == 2
        assert "the loss is" in capsys.readouterr().err
        assert [bar.live.is_started for bar in bars] == [False, False]
    finally:
        for bar in bars:
            bar.stop()


@pytest.mark.parametrize(
    ("width", "budget"),
    [(80, ["--iterations", "1"]), (80, ["--compute", "6MFLOP"]), (160, ["--compute", "6MFLOP"])],
)
def test_the_progress_bar_is_whole(
    width: int, budget: list[str], tmp_path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Bar, count, accuracy and time left on one line, nothing cut off; on a wide terminal everything."""
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("COLUMNS", str(width))
    assert main(["run", *QUICK, *MEMORY, *budget, "--method", "al-sar", "--out", str(tmp_path / "run")]) == 0
    shown = re.sub(r"\x1b\[[\d;?]*[A-Za-z]", "", capsys.readouterr().err)
    frames = [line for line in re.split(r"[\r\n]", shown) if "/40" in line]
    assert frames
    for frame in frames:
        assert len(frame.rstrip()) <= width
        assert "…" not in frame
        assert re.search(r"/40 (accuracy \d[\d.]* %, A_AUC \d[\d.]* %|not evaluated yet), .*FLOP", frame)
        assert re.search(r"(\d:\d\d|--:--)\s*$", frame)
    assert "accuracy " in frames[-1]
    if width == 160:
        assert all("frozen" in frame for frame in frames)


def test_the_folder_is_named_by_the_run_unless_told(
    tmp_path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    said(["run", *QUICK, *MEMORY, "--method", "vanilla", "--seed", "7"], capsys)
    assert (tmp_path / "runs" / "vanilla-digits-gaussian-7" / "summary.json").exists()


def test_budgets_instead_of_slots_and_iterations(tmp_path: Path, capsys: Capture) -> None:
    for number, (memory, compute, rule) in enumerate((("85kB", "3MMAC", "paper"), ("0.08MiB", "6MFLOP", "real"))):
        flags = ["--memory", memory, "--compute", compute, "--method", "al-sar", "--out", str(tmp_path / str(number))]
        summary = json.loads(said(["run", *QUICK, *flags, "--json"], capsys))
        amount, limit = {"paper": 3e6, "real": 6e6}[rule], {"paper": 85_000, "real": 83_886}[rule]
        assert summary["bytes"] <= limit < summary["bytes"] + 8 * 8 + 1 + 4
        assert 0.5 * amount < summary["spent"][rule] <= amount


def test_settings_reach_the_run(tmp_path: Path, capsys: Capture) -> None:
    told = ["--set", "learner.learning_rate=1e-3", "--set", "augmentation.flip=true", "--set", "learner.selection=none"]
    flags = ["--method", "vanilla", "--freezing", "constant", "--set", "freezing.n=1", "--retrieval", "class-balanced"]
    arguments = ["run", *QUICK, *MEMORY, *flags, *told, "--out", str(tmp_path / "run"), "--json"]
    summary = json.loads(said(arguments, capsys))
    assert summary["config"]["settings"] == {
        "learner.learning_rate": "1e-3",
        "augmentation.flip": "true",
        "learner.selection": "none",
        "freezing.n": "1",
    }
    assert summary["frozen_steps"] == [40, 0]


def test_a_batch_size_by_setting_is_the_one_that_is_planned_with(tmp_path: Path, capsys: Capture) -> None:
    """Two ways to say one thing must not give a plan for one batch and a run with another."""
    flags = ["--method", "vanilla", "--compute", "3MMAC", *MEMORY, "--set", "learner.batch_size=8"]
    capsys.readouterr()
    if main(["run", *QUICK, *flags, "--out", str(tmp_path / "run"), "--json"]) == 0:
        summary = json.loads(capsys.readouterr().out)
        assert summary["iterations"] == pytest.approx(40 * summary["iterations_per_sample"], abs=1)


# -- config files -------------------------------------------------------------------------------------------------

TOML = """
method = "er"
model = "mlp"
limit = 40
batch-size = 4
slots = 20
iterations = 1
seed = 3
eval_samples = 50

[settings]
"learner.momentum" = 0.9

[settings.learner]
optimizer = "sgd"
learning_rate = 1e-3
channels_last = false
"""


@pytest.mark.parametrize("kind", ["toml", "json"])
def test_a_config_file_gives_the_defaults_and_flags_win(kind: str, tmp_path: Path, capsys: Capture) -> None:
    import tomllib

    path = tmp_path / f"config.{kind}"
    path.write_text(TOML if kind == "toml" else json.dumps(tomllib.loads(TOML)))
    flags = ["--seed", "4", "--set", "learner.learning_rate=0.5e-3", "--out", str(tmp_path / "run"), "--json"]
    config = json.loads(said(["run", "--config", str(path), *flags], capsys))["config"]
    assert (config["method"], config["slots"], config["batch_size"], config["seed"]) == ("er", 20, 4, 4)
    assert config["settings"] == {
        "learner.momentum": "0.9",
        "learner.optimizer": "sgd",
        "learner.learning_rate": "0.5e-3",
        "learner.channels_last": "False",
    }


@pytest.mark.parametrize("flag", [["--memory", "85kB"], ["--unlimited"], ["--compute", "3MMAC"]])
def test_a_flag_wins_over_its_alternative_in_the_file(flag: list[str], tmp_path: Path, capsys: Capture) -> None:
    """The help says that flags win: --memory over the file's slots, --compute over its iterations."""
    (tmp_path / "config.toml").write_text(TOML)
    arguments = ["run", "--config", str(tmp_path / "config.toml"), *flag, "--out", str(tmp_path / "run"), "--json"]
    config = json.loads(said(arguments, capsys))["config"]
    assert config[flag[0].removeprefix("--")] is not None


def test_the_config_of_a_run_runs_it_again(runs: Path, tmp_path: Path, capsys: Capture) -> None:
    arguments = ["run", "--config", str(runs / "er-1" / "config.json"), "--out", str(tmp_path / "again"), "--json"]
    again, first = json.loads(said(arguments, capsys)), summaries(runs, "er")[0]
    assert again["weights_sha256"] == first["weights_sha256"]
    assert again["records_sha256"] == first["records_sha256"]


@pytest.mark.parametrize(
    ("name", "content", "says"),
    [
        ("a.toml", "metod = 'er'", "did you mean 'method'"),
        ("a.toml", "slots = 'many'", "slots = 'many' is not of type"),
        ("a.toml", "slots = true", "slots = True is not of type"),
        ("a.toml", "slots = ", "is no valid TOML"),
        ("a.json", "{", "is no valid JSON"),
        ("a.json", "[1]", "holds no table"),
        ("a.toml", "settings = 3", "settings = 3 is not of type"),
        ("a.toml", "[settings]\nfoo = 1", "unknown setting 'foo'"),
        ("a.toml", "slots = 1\nmemory = '1MB'", "give one of --slots"),
    ],
)
def test_a_bad_config_file_is_named(name: str, content: str, says: str, tmp_path: Path, capsys: Capture) -> None:
    (tmp_path / name).write_text(content)
    error = refused(["run", "--config", str(tmp_path / name), "--out", str(tmp_path / "run")], capsys)
    assert says in error
    assert not (tmp_path / "run" / "config.json").exists()


def test_a_config_file_that_is_not_there(tmp_path: Path, capsys: Capture) -> None:
    assert "cannot read the config file" in refused(["run", f"--config={tmp_path / 'no.toml'}"], capsys)
    assert "--config needs a file" in refused(["run", "--config"], capsys)


# -- plan, list, blocks -------------------------------------------------------------------------------------------


def test_plan_as_json(capsys: Capture) -> None:
    flags = ["--method", "al-sar", "--dataset", "cifar10", "--model", "resnet32", "--memory", "7998016B"]
    found = json.loads(said(["plan", *flags, "--iterations", "1", "--rule", "paper", "--no-measure", "--json"], capsys))
    assert found["slots"] == 1997
    assert found["spent"]["paper"] == pytest.approx(171.94e12, rel=3e-4)
    items = dict(found["bytes"])
    assert items.pop("total") == sum(items.values()) <= 7_998_016
    assert items.keys() == {"parameters", "similarity", "freezing", "memory"}
    assert found["iterations"] == 1


def test_plan_for_people(capsys: Capture) -> None:
    text = said(["plan", "--method", "er", "--dataset", "digits", "--model", "mlp", "--slots", "50"], capsys)
    assert "\x1b" not in text
    for what in ("memory, 50 slots", "bytes (rule real)", "the run, rule paper", "the run, rule real", "predicted"):
        assert what in text


def test_a_plan_and_a_run_agree(tmp_path: Path, capsys: Capture) -> None:
    flags = ["--method", "al-sar", "--dataset", "digits", "--model", "mlp", "--memory", "85kB", "--batch-size", "4"]
    planned = json.loads(said(["plan", *flags, "--limit", "40", "--compute", "3MMAC", "--json"], capsys))
    flags = ["--method", "al-sar", "--memory", "85kB", "--compute", "3MMAC", "--out", str(tmp_path / "run"), "--json"]
    ran = json.loads(said(["run", *QUICK, *flags], capsys))
    assert planned["slots"] == ran["slots"]
    assert planned["bytes"]["total"] == ran["bytes"]
    assert ran["iterations_per_sample"] == planned["iterations"]
    assert ran["iterations"] == pytest.approx(planned["steps"], abs=1)


@pytest.mark.parametrize("what", ["methods", "datasets", "models", "freezing", "retrieval", "streams"])
def test_lists(what: str, capsys: Capture) -> None:
    rows = json.loads(said(["list", what, "--json"], capsys))
    names = [row["name"] for row in rows]
    known = {
        "methods": set(METHODS),
        "datasets": {"digits", "cifar10", "cifar100", "mnist"},
        "models": {"resnet20", "resnet32", "cnn8"},
        "freezing": {"none", "constant", "linear", "random", "adaptive"},
        "retrieval": {"uniform", "class-balanced", "sar"},
        "streams": {"gaussian", "disjoint", "blurry", "domain"},
    }
    assert set(names) >= known[what]
    assert len(set(names)) == len(names)
    text = said(["list", what], capsys)
    assert all(name in text for name in names)


def test_blocks_as_json(capsys: Capture) -> None:
    found = json.loads(said(["blocks", "cnn8", "--input", "1x8x8", "--frozen", "2", "--json"], capsys))
    assert [row["frozen"] for row in found["blocks"]] == [True, True] + [False] * 6
    assert sum(row["parameters"] for row in found["blocks"]) == found["parameters"]


# -- help and mistakes --------------------------------------------------------------------------------------------

HELP = {
    "run": ["--method", "--memory", "--compute", "--spend-savings", "--resume", "--config", "--set", "--threads"],
    "plan": ["--rule", "--memory", "--json"],
    "table": ["--ddof", "--csv", "--figure"],
    "compare": ["--rows", "--where", "--json"],
    "list": ["methods", "--json"],
    "blocks": ["--input", "--frozen"],
    "demo": ["--out"],
}


@pytest.mark.parametrize("command", HELP)
def test_help(command: str, capsys: Capture) -> None:
    with pytest.raises(SystemExit) as ended:
        main([command, "--help"])
    assert ended.value.code == 0
    text = capsys.readouterr().out
    assert all(flag in text for flag in HELP[command])


def test_help_names_every_command(capsys: Capture) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["--help"])
    assert ended.value.code == 0
    text = capsys.readouterr().out
    assert all(command in text for command in HELP)


@pytest.mark.parametrize(
    "arguments",
    [["run", "--bogus", "1"], ["run", "--method"], ["run", "--slots", "x"], ["list"], ["list", "foo"],
     ["plan", "--rule", "foo"], ["table", ".", "--format", "xml"], ["blocks"], ["demo", "--part", "x"]],
)  # fmt: skip
def test_what_cannot_be_parsed_ends_with_one_line(arguments: list[str], capsys: Capture) -> None:
    assert "--help`" in refused(arguments, capsys)


@pytest.mark.parametrize(
    ("flag", "says"),
    [("--lr", "--set learner.learning_rate"), ("--epochs", "--iterations"), ("--weight-decay", "--set learner.")],
)
def test_what_people_expect_among_the_flags_is_said_to_be_elsewhere(flag: str, says: str, capsys: Capture) -> None:
    assert says in refused(["run", flag, "1"], capsys)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [([], "give a command first"), (["--json"], "give a command first"), (["rnu"], "did you mean 'run'?")],
)
def test_what_is_no_command_is_one_line(arguments: list[str], says: str, capsys: Capture) -> None:
    assert says in refused(arguments, capsys)


@pytest.mark.parametrize("command", COMMANDS)
def test_help_says_defaults_and_choices_and_never_none(command: str, capsys: Capture) -> None:
    with pytest.raises(SystemExit):
        main([command, "--help"])
    text = capsys.readouterr().out
    assert "None" not in text
    assert "default: )" not in text
    assert " STR" not in text
    assert "--no-json" not in text
    if command == "run":
        assert "--stream gaussian|disjoint|blurry|domain" in text
        assert "(default: gaussian)" in text


MISTAKES = {
    "method": (["--method", "al-sra"], "did you mean 'al-sar'"),
    "data set": (["--dataset", "digit"], "did you mean 'digits'"),
    "model": (["--model", "resnt32"], "did you mean 'resnet32'"),
    "stream": (["--stream", "gausian"], "did you mean 'gaussian'"),
    "freezing": (["--freezing", "adaptve"], "did you mean 'adaptive'"),
    "retrieval": (["--retrieval", "clas-balanced"], "did you mean 'class-balanced'"),
    "byte rule": (["--byte-rule", "papr"], "did you mean 'paper'"),
    "device": (["--device", "tpu"], "use --device cpu"),
    "setting": (["--set", "learner.learning_rat=1"], "did you mean 'learner.learning_rate'"),
    "setting's part": (["--set", "foo=1"], "unknown setting 'foo'"),
    "setting of another policy": (["--set", "freezing.n=1"], "unknown setting 'freezing.n'"),
    "setting without value": (["--set", "learner.momentum"], "write KEY=VALUE"),
    "setting's type": (["--set", "learner.momentum=fast"], "learner.momentum=fast: give a number"),
    "setting's choice": (["--set", "learner.optimizer=adm"], "did you mean 'adam'"),
    "yes or no": (["--set", "learner.channels_last=maybe"], "give true or false"),
    "own part": (["--method", "al-sar", "--freezing", "none"], "defines its own freezing"),
    "two memories": (["--memory", "1MB"], "give one of --slots"),
    "two computes": (["--iterations", "1", "--compute", "1TMAC"], "not both"),
    "compute without a unit": (["--compute", "5"], "cannot read '5' as compute"),
    "too little compute": (["--compute", "1MAC"], "the smallest possible budget is"),
    "seed": (["--seed", "-1"], "--seed must be 0 or more"),
    "threads": (["--threads", "0"], "--threads must be 1 or more"),
    "batch": (["--batch-size", "1"], "at least 2"),
    "iterations": (["--iterations", "-1"], "--iterations must be 0 to"),
    "endless iterations": (["--iterations", "inf"], "iterations"),
    "iterations, not a number": (["--iterations", "nan"], "iterations"),
    "limit": (["--limit", "100000"], "only 1437"),
    "limit below classes": (["--limit", "3"], "at least one for each class"),
    "learning rate": (["--set", "learner.learning_rate=-1"], "learning_rate"),
    "momentum": (["--set", "learner.optimizer=sgd", "--set", "learner.momentum=-1"], "momentum"),
    "label smoothing": (["--set", "learner.label_smoothing=5"], "label_smoothing"),
    "temperature": (["--set", "retrieval.temperature=0"], "temperature"),
    "sampled fraction": (["--set", "learner.sampled_fraction=2"], "fraction"),
    "selection": (["--set", "learner.selection=newest"], "unknown selection 'newest'"),
    "domains": (["--stream", "domain"], "needs a domain for each sample"),
    "missing data": (["--dataset", "cifar10", "--data", "nowhere"], "nowhere (looked for"),
}


@pytest.mark.parametrize("kind", MISTAKES)
def test_mistakes_are_one_line_and_leave_no_run(
    kind: str, tmp_path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    arguments, says = MISTAKES[kind]
    assert says in refused(["run", *QUICK, *MEMORY, "--method", "vanilla", *arguments, "--out", "run"], capsys)
    assert not Path("run/config.json").exists()


@pytest.mark.parametrize("out", ["file", "file/run", "x" * 300, "/proc/run"])
def test_a_folder_that_cannot_be_is_one_line(
    out: str, tmp_path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("file").write_text("mine")
    refused(["run", *QUICK, *MEMORY, "--out", out], capsys)
    assert Path("file").read_text() == "mine"


def test_the_smallest_possible_memory_works(tmp_path: Path, capsys: Capture) -> None:
    flags = ["run", *QUICK, "--method", "al-sar", "--json"]
    error = refused([*flags, "--memory", "1kB", "--out", str(tmp_path / "a")], capsys)
    smallest = error.split()[-1]
    summary = json.loads(said([*flags, "--memory", smallest, "--out", str(tmp_path / "b")], capsys))
    assert summary["slots"] == 1
    assert f"{summary['bytes']}B" == smallest


def test_a_refused_run_leaves_nothing_behind(tmp_path: Path, capsys: Capture) -> None:
    refused(
        ["run", *QUICK, *MEMORY, "--method", "vanilla", "--model", "resnet99", "--out", str(tmp_path / "run")], capsys
    )
    refused(["run", *QUICK, "--memory", "10B", "--method", "vanilla", "--out", str(tmp_path / "run")], capsys)
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "mine").mkdir()  # a folder that was there stays
    refused(["run", *QUICK, "--memory", "10B", "--method", "vanilla", "--out", str(tmp_path / "mine")], capsys)
    assert (tmp_path / "mine").is_dir()


def test_events_of_a_run_go_to_a_file(tmp_path: Path, capsys: Capture) -> None:
    told = tmp_path / "told" / "events.csv"
    flags = ["run", *QUICK, *MEMORY, "--method", "vanilla", "--out", str(tmp_path / "run"), "--events", str(told)]
    assert main(flags) == 0
    with told.open() as file:
        rows = list(csv.DictReader(file))
    records = [json.loads(line) for line in (tmp_path / "run" / "records.jsonl").read_text().splitlines()]
    accuracies = [float(row["value"]) for row in rows if row["kind"] == "evaluation" and row["what"] == "accuracy"]
    assert accuracies == [record["accuracy"] for record in records]
    assert {row["kind"] for row in rows} >= {"new class", "evaluation", "checkpoint"}
    assert "cannot write events" in refused([*flags[:-1], "/proc/nowhere/events.csv"], capsys)
