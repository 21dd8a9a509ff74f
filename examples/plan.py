"""Plan memory before anything is loaded: on this machine, on GPUs that need not be here, and where it does not fit.

Prints the plan of a search with the shipped models, who sits on which of two GPUs with the commands that start their
servers, then for one GPU why it is refused and which settings would fit.
"""

import palmette
from palmette.units import format_bytes

here = palmette.plan("seedling", strategy="ets", width=64)
print(here)

policy, reward = "peiyi9979/mistral-7b-sft", "peiyi9979/math-shepherd-mistral-7b-prm"
there = palmette.plan(policy, reward, "ets", width=64, devices="2x24GiB")
print(f"two GPUs: {'fits' if there.fits else 'does not fit'}, peak {format_bytes(there.peak_bytes)}")
for device in there.devices:
    print(f"  {device.device.name}: {', '.join(device.roles)}, {format_bytes(device.peak.bytes)}")
for server in there.servers:
    print(f"  {server.role}: {server.commands['sglang']}")

tight = palmette.plan(policy, reward, "ets", width=64, devices="1x24GiB")
print(f"one GPU: {tight.refusal}")
for setting in tight.suggestions:
    print(f"  would fit: {setting}")
