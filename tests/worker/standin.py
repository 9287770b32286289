"""Stand-in trainers: what a supervisor must survive and no training needs.

A folder with a package `trainer_core` that runs instead of the real one in cold starts, because
PYTHONPATH comes first. It is no trainer: it only misbehaves on request.
"""

from pathlib import Path

# Ignores SIGTERM, and has a child, and a grandchild that left its session and its parent.
STUBBORN = """
import os, signal, subprocess, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
child = subprocess.Popen(["sleep", "1000"])
orphan = subprocess.Popen(
    [sys.executable, "-S", "-c",
     "import subprocess; subprocess.Popen(['sleep', '1000'], start_new_session=True)"])
orphan.wait()
print("ready", flush=True)
time.sleep(1000)
"""

# Tells what it can see of its surroundings.
NOSY = """
import json, os, sys
fd = int(os.environ["POLAR_SECRETS_FD"])
secrets = os.fdopen(fd).read()
print(json.dumps({"environment": dict(os.environ), "argv": sys.argv, "secrets": secrets,
    "descriptors": sorted(int(n) for n in os.listdir("/proc/self/fd"))}), flush=True)
"""


def install(folder: Path, source: str) -> str:
    """Write the package; returns the PYTHONPATH that puts it first."""
    package = folder / "trainer_core"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("")
    (package / "__main__.py").write_text(source)
    return str(folder)
