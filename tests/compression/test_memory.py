"""How much memory compress takes beside the model: copies are made one at a time."""

from __future__ import annotations

import subprocess
import sys
import textwrap

import pytest


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="the peak is read in kilobytes, as Linux gives it")
def test_the_peak_is_at_most_five_times_the_weights_beside_the_model_itself():
    """Two of them are the silenced network in float64, one is the private copy; a network of 38 million weights."""
    code = textwrap.dedent("""
        import resource, torch
        from torch import nn
        from sparsefw import compress

        def peak():
            return 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss

        wide = 3000
        net = nn.Sequential(nn.Linear(256, wide), *[nn.Linear(wide, wide) for _ in range(4)], nn.Linear(wide, 256)).eval()
        x = torch.randn(2, 256)
        net(x)
        before = peak()
        compress(net, filters=0.5, example=x)
        print((peak() - before) / sum(4 * p.numel() for p in net.parameters()))
    """)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert float(done.stdout) < 5
