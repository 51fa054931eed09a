"""Does a test notice when a method is no longer what it is? Methods broken on purpose, one at a time.

    python benchmarks/mutations.py [--only METHOD …] [--out results/mutations.json]

Each breakage replaces one piece of the source, in a copy of it, and runs the test that is to notice. First all of these
are run on the copy as it is: a test that fails anyway notices nothing. An error that says just that the breakage is no
program (a name that is not there, a wrong number of arguments) does not count as noticed. It ends in an error if a
breakage survives, or if its text is not in the source exactly once.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
NO_PROGRAM = ("NameError", "AttributeError", "TypeError", "ImportError", "SyntaxError", "UnboundLocalError")


@dataclass(frozen=True)
class Breakage:
    method: str
    what: str
    """what is broken, in plain words"""
    file: str
    """under src/budgeted"""
    text: str
    """what is replaced"""
    by: str
    test: str
    """that is to notice, under tests"""

    def applied(self, source: str) -> str:
        found = source.count(self.text)
        if found != 1:
            raise SystemExit(f"{self.method}, {self.what!r}, does not apply: {self.file} has its text {found} times")
        return source.replace(self.text, self.by)


def of(method: str, file: str, tests: str, *broken: tuple[str, str, str, str]) -> list[Breakage]:
    """Several in one file of the source and of the tests: what, the test's name, the text, and what takes its place."""
    return [Breakage(method, what, file, text, by, f"{tests}::{test}") for what, test, text, by in broken]


BREAKAGES = [
    # -- the six methods that came last ----------------------------------------------------------------------------
    *of(
        "remind", "methods/remind.py", "methods/test_remind.py",
        ("the base is never over",
         "test_until_the_base_is_over_it_is_er",
         "learner.arrived > self.base_share * length", "learner.arrived > length"),
        ("training the codebooks is not charged",
         "test_every_step_is_charged_as_executed",
         'self.learner.run("forward", improved, vectors, centroids)', "improved(vectors, centroids)"),
        ("replayed features are not mixed, their labels are",
         "test_replayed_features_are_mixed_in_pairs_those_of_the_stream_are_not",
         "share * replayed + (1 - share) * replayed[others]", "replayed"),
    ),
    *of(
        "remind", "network/front.py", "network/test_front.py",
        ("the front is trained on",
         "test_once_it_has_gone_over_the_front_rests_with_its_statistics",
         "self.model.get_submodule(path).requires_grad_(False)",
         "self.model.get_submodule(path).requires_grad_(True)"),
        ("the front's statistics move on",
         "test_once_it_has_gone_over_the_front_rests_with_its_statistics",
         "for path in self._leaves if self.over else ():", "for path in ():"),
    ),
    *of(
        "remind", "network/front.py", "methods/test_remind.py",
        ("a block more rests than was said",
         "test_afterwards_the_front_rests_and_is_run_for_what_arrives_alone",
         "first = max(1, len(chain) - 1 - trained)", "first = max(1, len(chain) - trained)"),
        ("predictions read features that are not quantised",
         "test_predictions_read_quantised_features",
         "inputs = self.quantiser.restored(self.quantiser.codes(run(self.model, self._front, inputs)))",
         "inputs = run(self.model, self._front, inputs)"),
    ),
    *of(
        "remind", "network/quantiser.py", "methods/test_remind.py",
        ("the codebooks are not counted",
         "test_bytes_stay_within_the_budget",
         'self.register_buffer("centroids", torch.zeros(parts, SIZE, channels // parts))',
         "self.centroids = torch.zeros(parts, SIZE, channels // parts)"),
    ),
    *of(
        "memo", "network/expandable.py", "methods/test_memo.py",
        ("old stages are trained on",
         "test_the_newest_stage_is_trained_the_older_ones_and_their_statistics_rest",
         "newest.requires_grad_(False)", "newest.requires_grad_(True)"),
        ("the new stage is not trained",
         "test_the_newest_stage_is_trained_the_older_ones_and_their_statistics_rest",
         "stage.requires_grad_(True)", "stage.requires_grad_(False)"),
        ("statistics of old stages move",
         "test_the_newest_stage_is_trained_the_older_ones_and_their_statistics_rest",
         "for stage in self.stages[:-1]:", "for stage in ():"),
    ),
    *of(
        "memo", "methods/memo.py", "methods/test_memo.py",
        ("no auxiliary term",
         "test_logits_and_loss_are_the_hand_written_ones",
         "return joint + self.auxiliary_weight *", "return joint + 0.0 *"),
        ("the auxiliary classifier reads the oldest stage",
         "test_logits_and_loss_are_the_hand_written_ones",
         "[:, -self._auxiliary.in_features :]", "[:, : self._auxiliary.in_features]"),
    ),
    *of(
        "memo", "runs/plan.py", "methods/test_memo.py",
        ("a plan reserves no bytes for stages to come",
         "test_a_plan_reserves_what_will_come",
         "growth = grown_bytes(probe,", "growth = 0 * grown_bytes(probe,"),
    ),
    *of(
        "x-der", "methods/x_der.py", "methods/test_x_der.py",
        ("logits are transplanted into the wrong rows",
         "test_stored_logits_are_renewed_in_the_right_rows",
         "below, new[:, first:], truth", "below, new.roll(1, 1)[:, first:], truth"),
        ("rows of the past are renewed, too",
         "test_stored_logits_are_renewed_in_the_right_rows",
         "torch.cat([stored[:, :first],", "torch.cat([new[:, :first],"),
        ("no margin to the future",
         "test_loss_and_gradient_are_those_written_by_hand",
         "self.margin_weight * self._margin_to_future", "0.0 * self._margin_to_future"),
        ("labels are told apart among all rows",
         "test_loss_and_gradient_are_those_written_by_hand",
         "F.cross_entropy(torch.where(own, logits, -math.inf), labels)", "F.cross_entropy(logits, labels)"),
        ("views have no gradient, and are not charged",
         "test_it_charges_what_it_executes",
         "self.learner.network.forward_also(views)", "self.learner.network.forward_also(views).detach()"),
    ),
    *of(
        "ccl-dc", "methods/ccl_dc.py", "methods/test_ccl_dc.py",
        ("the chain is reversed: the easier view teaches",
         "test_both_losses_and_their_gradients_are_those_written_by_hand",
         "of_other[min(place + 1, len(views) - 1)]", "of_other[max(place - 1, 0)]"),
        ("a teacher has a gradient",
         "test_both_losses_and_their_gradients_are_those_written_by_hand",
         'len(views) - 1)].detach()\n            taught = self.learner.run("forward", softened, harder,'
         " self.kd_temperature)",
         "len(views) - 1)]\n            taught = softened(harder, self.kd_temperature)"),
        ("views are no chain: each is made from the batch as it is",
         "test_views_are_a_chain_from_easy_to_hard",
         "self.learner.problem.vary(found[-1],", "self.learner.problem.vary(samples,"),
        ("the second network is not heard",
         "test_predictions_are_made_from_the_mean_of_both",
         "return _mean(super().respond(model, inputs), super().respond(self.peer.model, inputs))",
         "return super().respond(model, inputs)"),
        ("the second network's bytes are not counted",
         "test_the_second_network_comes_off_the_memory",
         'kept = ("peer", "twin")', 'kept = ("twin",)'),
    ),
    *of(
        "sparcl", "methods/sparcl.py", "methods/test_sparcl.py",
        ("the mask is not applied to gradients",
         "test_what_is_not_active_is_zero_and_what_is_not_trained_has_no_gradient",
         "masks = [self.trained[name] for", "masks = [torch.ones_like(self.trained[name]) for"),
        ("weights that are not active stay",
         "test_what_is_not_active_is_zero_and_what_is_not_trained_has_no_gradient",
         "[self.active[n] for n in weights]", "[torch.ones_like(self.active[n]) for n in weights]"),
        ("the samples mistaken most often are left out",
         "test_the_samples_mistaken_least_are_left_out_of_later_steps_and_stored",
         "argsort(descending=True, stable=True)", "argsort(descending=False, stable=True)"),
        ("weights leave by their size alone",
         "test_an_adjustment_against_a_search_by_hand",
         "weight.abs() + importance", "weight.abs()"),
        ("the loss on the stream knows all classes",
         "test_the_trained_weights_are_those_with_the_largest_gradients_of_two_losses_written_out",
         "F.cross_entropy(logits[:, classes], own)", "F.cross_entropy(logits, labels)"),
    ),
    *of(
        "trire", "methods/task_part.py", "methods/test_trire.py",
        ("no rewind",
         "test_a_task_goes_through_its_phases",
         "torch.where(shared, weight, before)", "weight.clone()"),
        ("S is not protected from the stream",
         "test_every_weight_gets_the_gradient_of_its_half",
         "free = own & ~held if revised else ~held", "free = own if revised else torch.ones_like(held)"),
    ),
    *of(
        "trire", "methods/trire.py", "methods/test_trire.py",
        ("the slow model is not asked",
         "test_every_weight_gets_the_gradient_of_its_half",
         "loss + self.ema_weight *", "loss + 0.0 *"),
        ("the slow model stays where it began",
         "test_the_slow_model_is_a_moving_average",
         "torch._foreach_lerp_, slow, fast, share", "torch._foreach_lerp_, slow, fast, 0.0 * share"),
        ("revise is no slower",
         "test_a_task_goes_through_its_phases",
         "self.slow if self.phase == REVISE else 1.0", "1.0"),
    ),
    # -- what a review found, as it was ------------------------------------------------------------------------------
    *of(
        "linear", "freezing/policies.py", "freezing/test_schedules.py",
        ("the ramp goes by steps, and is over before the stream is",
         "test_with_savings_spent_linear_freezing_is_at_its_most_for_its_share_of_the_stream",
         'part_of_stream(view.share, self.n_max + 1, "linear", "steps")',
         "min(self.n_max, view.step * (self.n_max + 1) // 60)"),
        ("one more block rests a tenth of a part too soon",
         "test_linear_freezing_is_at_its_most_in_an_even_share_of_the_steps",
         "math.ceil(share * parts - 1e-9) - 1", "math.ceil(share * parts + 0.1) - 1"),
    ),
    *of(
        "ptlf", "freezing/ptlf.py", "freezing/test_schedules.py",
        ("stretches go by steps, and there are more than tasks",
         "test_with_savings_spent_ptlf_has_its_stretches_and_takes_each_in_once",
         'part_of_stream(share, self.tasks, "ptlf", "stretch")', "step // 12"),
    ),
    *of(
        "rm", "methods/rm.py", "methods/test_rm.py",
        ("samples are scored in the first task, too",
         "test_samples_are_scored_once_per_task_never_in_the_first_and_not_while_all_fit",
         "if first or not memory.full", "if not memory.full"),
        ("samples are scored whenever one is stored",
         "test_samples_are_scored_once_per_task_never_in_the_first_and_not_while_all_fit",
         "    def uncertainty(self,",
         "    def stored(self, slot: int, place: int | None) -> None:\n        self.end_task()\n\n"
         "    def uncertainty(self,"),
    ),
    *of(
        "bic", "methods/bic.py", "methods/test_bic.py",
        ("n old classes against m new ones weigh the terms online, too",
         "test_online_labels_are_learned_as_much_with_many_old_classes_as_with_few",
         "* classified if self.offline else distilled + classified", "* classified"),
        ("the teacher is not renewed when a class comes",
         "test_online_the_teacher_is_renewed_when_a_class_comes_and_teaches_the_others",
         "if 0 < self._rows < seen and not self.offline:", "if 0 < self._rows < 0:"),
        ("a withheld sample that is replaced is lost",
         "test_a_withheld_sample_that_is_replaced_goes_on_in_place_of_the_newcomer",
         "self._kept[row, place].clone() if full else None", "None"),
    ),
    *of(
        "pace", "learner/pace.py", "learner/test_pace.py",
        ("what a step cost less than it might have is taken for savings",
         "test_steps_are_even_where_nothing_is_frozen_whatever_is_run_beside_them",
         "self._bank += max(0, saved)", "self._bank += max(0, most - cost)"),
        ("all that was spent less than planned buys steps, though nothing rested",
         "test_steps_are_even_where_nothing_is_frozen_whatever_is_run_beside_them",
         "        if not self._bank:\n            return 0.0\n", "        self._bank = math.inf\n"),
        ("savings buy steps that the plan has nothing left for",
         "test_savings_are_no_more_than_the_plan_has_left",
         "max(0.0, min(self._bank, unspent))", "self._bank"),
    ),
    *of(
        "mir", "replay/mir.py", "methods/test_mir.py",
        ("the virtual step is plain SGD's",
         "test_draws_the_candidates_whose_loss_rises_most_and_leaves_no_trace",
         'plain = self.settings.virtual == "sgd"', "plain = True"),
        ("those whose loss rises least are replayed",
         "test_draws_the_candidates_whose_loss_rises_most_and_leaves_no_trace",
         "np.argsort(-increase,", "np.argsort(increase,"),
        ("the gradient on what arrived is thrown away",
         "test_the_gradient_on_what_arrived_is_its_part_of_the_step",
         "self._ahead = gradients if reused else {}", "self._ahead = {}"),
    ),
    *of(
        "clib", "methods/clib.py", "methods/test_clib.py",
        ("a turn of a learning rate is ten measurements, however short the stream",
         "test_on_a_short_stream_the_rates_are_compared_after_a_tenth_too",
         "return self.learner.arrived >= (self._turn + 1) * samples * _FIRST / (2 * self.rate_turns)",
         "return self._measured % 10 == 0"),
    ),
    *of(
        "ewc", "methods/ewc.py", "methods/test_ewc.py",
        ("normalised, F stays as it is",
         "test_normalised_the_fisher_information_in_the_penalty_is_scaled_to_one_over_all_weights",
         "        if self.normalised:\n", "        if False:\n"),
        ("normalised, every layer has a scale of its own",
         "test_normalised_the_fisher_information_in_the_penalty_is_scaled_to_one_over_all_weights",
         "(high.amax() - low.amin())", "(each.amax() - low.amin())"),
    ),
    *of(
        "mir, aser, ocs", "learner/lent.py", "learner/test_compute.py",
        ("whoever asks for samples pays for the scaling of their pixels, a batch does not",
         "test_scaling_pixels_is_charged_to_nobody",
         "        self.charge_codec()\n        return self.holding.inputs(",
         '        self.account.charge("retrieval", Cost(0, 2 * samples.numel()))  # type: ignore[union-attr]\n'
         "        self.charge_codec()\n        return self.holding.inputs("),
    ),
    *of(
        "mir", "replay/mir.py", "learner/test_compute.py",
        ("MIR pays for the scaling of its candidates' pixels",
         "test_scaling_pixels_is_charged_to_nobody",
         "    before, after = (\n",
         "    from budgeted.budget import Cost\n\n"
         '    network.account.charge("retrieval", Cost(0, 2 * asked.numel()))\n    before, after = (\n'),
    ),
]  # fmt: skip


def run(source: Path, tests: Sequence[str], *, keep: bool = False) -> tuple[int, str]:
    """Of pytest on the package in `source`: how it ended, and what it printed. keep: bytecode, for the next."""
    command = [sys.executable, "-m", "pytest", "-x", "-q", "--tb=no", "-p", "no:cacheprovider"]
    command += [f"tests/{test}" for test in tests]
    told = {"PYTHONPATH": str(source), "COLUMNS": "400", "PYTHONDONTWRITEBYTECODE": "" if keep else "1"}
    ran = subprocess.run(command, cwd=ROOT, env=os.environ | told, capture_output=True, text=True)
    return ran.returncode, ran.stdout + ran.stderr


def tried(breakage: Breakage, source: Path) -> dict[str, Any]:
    """One breakage applied, its test run, and the source as it was again."""
    path = source / "budgeted" / breakage.file
    before = path.stat()
    whole = path.read_text(encoding="utf-8")
    path.write_text(breakage.applied(whole), encoding="utf-8")
    ended, printed = run(source, [breakage.test])
    path.write_text(whole, encoding="utf-8")
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))  # so that its bytecode holds
    failed = re.search(r"^FAILED tests/(\S+?)::(\w+)(?:\[.*?\])?(?: - (.*))?$", printed, re.MULTILINE)
    said = (failed[3] or "").strip() if failed else ""
    noticed = ended == 1 and failed is not None and not said.startswith(NO_PROGRAM)
    if not noticed and ended != 0:
        print(printed, file=sys.stderr)
    caught = f"{failed[1]}::{failed[2]}" if failed and noticed else None
    return {"method": breakage.method, "broken": breakage.what, "file": breakage.file, "caught": caught}


def table(found: Sequence[dict[str, Any]]) -> str:
    rows = ["| method | broken | caught by |", "| --- | --- | --- |"]
    for each in found:
        caught = "nothing" if each["caught"] is None else f"`{each['caught'].partition('::')[2]}`"
        rows.append(f"| {each['method']} | {each['broken']} | {caught} |")
    return "\n".join(rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", metavar="METHOD", help="breakages of these; nothing is written")
    parser.add_argument("--out", type=Path, default=ROOT / "results" / "mutations.json")
    chosen = parser.parse_args()
    breakages = [each for each in BREAKAGES if chosen.only is None or each.method in chosen.only]
    if not breakages:
        sys.exit(f"nothing is broken of {', '.join(chosen.only)}: choose of {', '.join({b.method for b in BREAKAGES})}")
    with tempfile.TemporaryDirectory() as place:
        source = Path(place) / "src"
        shutil.copytree(ROOT / "src", source, ignore=shutil.ignore_patterns("__pycache__", "*.egg-info"))
        for each in breakages:
            each.applied((source / "budgeted" / each.file).read_text(encoding="utf-8"))
        ended, printed = run(source, sorted({each.test for each in breakages}), keep=True)
        if ended:
            sys.exit(f"{printed}\nthese tests fail as it is: nothing was broken")
        found = []
        for each in breakages:
            found.append(tried(each, source))
            print(f"{each.method}: {each.what}: {found[-1]['caught'] or 'survived'}", file=sys.stderr, flush=True)
    print(table(found))
    if chosen.only is None:
        chosen.out.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    survived = sum(each["caught"] is None for each in found)
    if survived:
        sys.exit(f"{survived} of {len(found)} survived")


if __name__ == "__main__":
    main()
