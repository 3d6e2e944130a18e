"""Memory that a process holds but does not use."""

import platform
import subprocess
import sys

import pytest

FRAGMENTS = """
import re
from clozify.utils.memory import return_freed_memory

def resident():
    return int(re.search(r"RssAnon:\\s+(\\d+)", open("/proc/self/status").read())[1]) / 1024

blocks, kept = [], []
for _ in range(2000):
    blocks.append(bytearray(b"x") * 100_000)  # below the size that the C library maps by itself
    kept.append(bytearray(b"x") * 1000)
del blocks
before = resident()
return_freed_memory()
print(before, resident())
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="needs glibc")
def test_freed_memory_between_small_allocations_returns_to_the_system():
    done = subprocess.run([sys.executable, "-c", FRAGMENTS], capture_output=True, text=True, check=True)
    before, after = map(float, done.stdout.split())
    assert before - after > 100  # of about 190 MiB
