"""The three masked faults of skillsbench's `debug-trl-grpo` in a copy of TRL: what the doctor says of runs and of code.

That task (https://github.com/benchflow-ai/skillsbench/pull/775) hands over a TRL with three faults and says only that
the model does not improve: decoding empties answers without </think>, so that all rewards are 0, which hides an epsilon
of 1e4 beside the standard deviation, so that advantages are near 0, which hides a reversed subtraction in the
log-probabilities. Here they are planted into the TRL of an environment of its own (make bench-algorithms makes it).
Each piece of code is handed to verify_code_math, broken and mended. Two of the faults show in the log of a run: the
run with both is diagnosed, the fault that is told is mended, and the next run is diagnosed. A reversed sign turns the
gradient round and leaves no trace in a log.

python -m benchmarks.masked_faults --python .venv-peers/bin/python
"""

import argparse
import ast
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import textwrap
from importlib.resources import as_file, files
from pathlib import Path

from palmette.agents.doctor.diagnose import diagnose
from palmette.agents.formulas.verify import verify
from palmette.api import load_task

DECODE = '''def decode_and_strip_padding(inputs: torch.Tensor, tokenizer: PreTrainedTokenizerBase) -> list[str]:
    """Decodes completions; of a reasoning model the answer behind its reasoning."""
    texts = []
    for text in tokenizer.batch_decode(inputs, skip_special_tokens=True):
        text = text.replace(tokenizer.pad_token or "", "")
        if "</think>" in text:
            text = text.split("</think>", 1)[-1].strip()
        texts.append(text)
    return texts
'''
EMPTIED = DECODE.replace("        texts.append", '        else:\n            text = ""\n        texts.append')
SCALED = """advantages = rewards - mean_grouped_rewards
            if self.scale_rewards != "none":
                advantages = advantages / (std_rewards + 1e-4)"""
CONCEPTS = {"decoding": "decode", "epsilon": "advantages", "sign": "selective log softmax"}


def planted(package: Path, faults: tuple[str, ...]) -> None:
    """Change a copy of TRL: its completions are decoded by a function of their own, and it has these faults."""
    trainer = package / "trainer/grpo_trainer.py"
    text = trainer.read_text(encoding="utf-8")
    decode = EMPTIED if "decoding" in faults else DECODE
    text = _once(text, "\nclass GRPOTrainer(", f"\n{decode}\n\nclass GRPOTrainer(")
    text = _once(
        text,
        "contents = self.processing_class.batch_decode(completion_ids, skip_special_tokens=True)",
        "contents = decode_and_strip_padding(completion_ids, self.processing_class)",
    )
    if "epsilon" in faults:
        text = _once(text, SCALED, SCALED.replace("1e-4", "1e4"))
    trainer.write_text(text, encoding="utf-8")


_SIGN = ("selected_logits - logsumexp_values.unsqueeze(-1)", "logsumexp_values.unsqueeze(-1) - selected_logits")


def _once(text: str, old: str, new: str) -> str:
    if text.count(old) != 1:
        raise SystemExit(f"this release of TRL does not have {old.strip().splitlines()[0]!r} once")
    return text.replace(old, new)


def trained(python: Path, package: Path, faults: tuple[str, ...], updates: int) -> str:
    """Return the log of a few updates of GRPO on `ladder` by a TRL with these faults."""
    with tempfile.TemporaryDirectory() as name, as_file(files("palmette.zoo") / "seedling") as seedling:
        folder = Path(name)
        shutil.copytree(package, folder / "trl", ignore=shutil.ignore_patterns("__pycache__"))
        planted(folder / "trl", faults)
        rows = [
            {"prompt": list(question.messages), "answer": question.reference}
            for question in load_task("ladder", questions=4 * updates).questions
        ]
        (folder / "questions.json").write_text(json.dumps(rows))
        options = {
            "method": "full", "learning_rate": 1e-4, "questions": 4, "width": 8, "tokens": 160, "kl_weight": 0.04,
            "updates": updates, "seed": 0, "gradient_checkpointing": False, "out": str(folder / "out"),
        }  # fmt: skip
        worker = Path(__file__).with_name("trl_worker.py")
        command = [str(python), str(worker), str(seedling), str(folder / "questions.json"), json.dumps(options)]
        done = subprocess.run(
            command, env={**os.environ, "PYTHONPATH": name}, capture_output=True, text=True, check=False
        )
    if done.returncode:
        raise SystemExit(done.stderr[-2000:])
    return done.stdout


def pieces(package: Path) -> dict[str, tuple[str, str]]:
    """Return the code that each fault is in, broken and mended."""
    utils = (package / "trainer/utils.py").read_text(encoding="utf-8")
    functions = {node.name: node for node in ast.parse(utils).body if isinstance(node, ast.FunctionDef)}
    right = ast.get_source_segment(utils, functions["selective_log_softmax"]) or ""
    scaled = textwrap.dedent(" " * 12 + SCALED)
    return {
        "decoding": (EMPTIED, DECODE),
        "epsilon": (scaled.replace("1e-4", "1e4"), scaled),
        "sign": (_once(right, *_SIGN), right),
    }


def _numbers(line: str) -> str:
    """Return what a line of TRL's log says of rewards and gradients."""
    return ", ".join(re.findall(r"'(?:grad_norm|reward|reward_std|kl)': '[^']*'", line)) or "nothing is told"


def main() -> None:
    """Diagnose run after run and check each piece of code; exit 1 if a fault is not found."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--python", type=Path, default=Path(".venv-peers/bin/python"), help="of an environment with TRL"
    )
    parser.add_argument("--updates", type=int, default=2)
    parser.add_argument("--show", action="store_true", help="print the logs too")
    options = parser.parse_args()
    asked = "import trl, pathlib; print(pathlib.Path(trl.__file__).parent)"
    package = Path(
        subprocess.run([options.python, "-c", asked], capture_output=True, text=True, check=True).stdout.strip()
    )
    missed = 0
    print("verify_code_math:")
    for name, (broken, mended) in pieces(package).items():
        found, after = verify(broken, CONCEPTS[name]), verify(mended, CONCEPTS[name])
        missed += found.agrees is not False or after.agrees is not True
        print(f"  {name}: {found.said}; mended: {after.said}")
    print("diagnose_failure, mending what it tells:")
    faults: tuple[str, ...] = ("decoding", "epsilon")
    for cause in ("no-signal", "tiny-advantages", None):
        log = trained(options.python, package, faults, options.updates)
        if options.show:
            print(log)
        told = diagnose(log)
        missed += told.id != cause
        print(f"  with {', '.join(faults) or 'none'}: {told.id} ({_numbers(told.evidence)})")
        faults = faults[1:]
    sys.exit(1 if missed else 0)


if __name__ == "__main__":
    main()
