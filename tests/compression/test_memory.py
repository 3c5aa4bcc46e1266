"""How much memory compress takes beside the model: copies are made one at a time, and share what they only read."""

from __future__ import annotations

import subprocess
import sys
import textwrap

import pytest

NETWORKS = {
    "linear layers": "nn.Sequential(nn.Linear(256, 3000), *[nn.Linear(3000, 3000) for _ in range(4)], nn.Linear(3000, 256))",
    "ResNet-50": "build('resnet50', classes=1000)",
    "transformer": "build('vit_tiny', width=768, heads=12, depth=14)",  # 100 million weights
}
EXAMPLES = {"linear layers": "(2, 256)", "ResNet-50": "(1, 3, 64, 64)", "transformer": "(1, 3, 32, 32)"}


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="the peak is read in kilobytes, as Linux gives it")
@pytest.mark.parametrize("name", NETWORKS)
def test_the_peak_is_at_most_four_times_the_weights_beside_the_model_itself(name):
    """One of them is the private copy, two the silenced network in float64."""
    code = textwrap.dedent(f"""
        import resource, torch
        from torch import nn
        from sparsefw import compress
        from sparsefw.models import build

        def peak():
            return 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss

        net = {NETWORKS[name]}.eval()
        x = torch.randn{EXAMPLES[name]}
        with torch.no_grad():
            net(x)
        before = peak()
        compress(net, filters=0.5, example=x)
        print((peak() - before) / sum(4 * p.numel() for p in net.parameters()))
    """)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert float(done.stdout) < 4
