"""Training steps of a small encoder on two threads beside busy loops: threads that spin, that wait passively, and one.

python benchmarks/threads.py [--busy 2] [--seconds 10]
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys

STEPS = """
import sys, time, torch
torch.manual_seed(0)
layer = torch.nn.TransformerEncoderLayer(256, 4, 1024, batch_first=True)
model = torch.nn.TransformerEncoder(layer, 4)
optimizer = torch.optim.AdamW(model.parameters())
rows = torch.randn(4, 64, 256)
started, steps = time.monotonic(), 0
while time.monotonic() - started < float(sys.argv[1]):
    model(rows).pow(2).mean().backward()
    optimizer.step()
    optimizer.zero_grad()
    steps += 1
print(steps / (time.monotonic() - started))
"""
WAYS = {"spinning": {}, "passive": {"OMP_WAIT_POLICY": "PASSIVE"}, "one thread": {"OMP_NUM_THREADS": "1"}}


def main() -> None:
    """Print the steps per second of each way, twice."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--busy", type=int, default=2, help="busy loops that run meanwhile")
    parser.add_argument("--seconds", type=float, default=10.0)
    options = parser.parse_args()
    loops = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(options.busy)]
    try:
        for _ in range(2):
            for name, variables in WAYS.items():
                environment = {"OMP_NUM_THREADS": "2"} | variables
                command = [sys.executable, "-c", STEPS, str(options.seconds)]
                done = subprocess.run(command, env=os.environ | environment, capture_output=True, text=True, check=True)
                print(f"{name}: {float(done.stdout):.2f} steps/s", flush=True)
    finally:
        for loop in loops:
            loop.kill()


if __name__ == "__main__":
    main()
