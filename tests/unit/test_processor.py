"""What the kernel tells of a processor decides which dtypes are slow on it."""

from pathlib import Path

from palmette.processor import lacking, read_cpuinfo, slow_dtypes

AVX2 = "processor\t: 0\nmodel name\t: AMD EPYC\nflags\t\t: fpu sse sse2 fma avx avx2\n"
AVX512 = AVX2.replace("avx2", "avx2 avx512f avx512bw avx512_vnni")
ARM = "processor\t: 0\nFeatures\t: fp asimd bf16 i8mm\n"


def test_without_avx512_narrow_dtypes_are_slow_on_x86_and_nothing_is_claimed_of_others() -> None:
    assert lacking(AVX2) == ("bfloat16", "float16", "int8")
    assert lacking(AVX512) == lacking(ARM) == lacking("") == ()


def test_a_line_names_each_slow_dtype_that_a_model_has_and_the_settings() -> None:
    told = list(slow_dtypes({"float32", "int8", "bfloat16"}, AVX2))
    assert [line.partition(":")[0] for line in told] == [
        "this processor has no instructions for bfloat16", "this processor has no instructions for int8",
    ]  # fmt: skip
    assert all("policy.dtype, policy.quantize, reward.dtype, reward.quantize" in line for line in told)
    assert not list(slow_dtypes({"float32"}, AVX2)) and not list(slow_dtypes({"bfloat16"}, AVX512))


def test_a_kernel_that_tells_nothing_is_no_error(tmp_path: Path) -> None:
    assert read_cpuinfo(tmp_path) == ""
    (tmp_path / "proc").mkdir()
    (tmp_path / "proc/cpuinfo").write_text(AVX2)
    assert read_cpuinfo(tmp_path) == AVX2
