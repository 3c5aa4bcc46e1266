"""Compiles every kernel for a GPU that need not be there: `python compile_kernels.py COMPUTE_CAPABILITY`.

The interpreter runs what no GPU would take, such as a variable that changes its type in a loop; the compiler says so.
"""

from __future__ import annotations

import re
import sys
from typing import Any

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from sparsefw.compression.fused import row_norms
from sparsefw.optim.fused import elementwise, entries, factors, products, rows

TYPES = {
    "*i32": "tensors starts own_starts lengths first count rows supports parts first_part part_piece part_tensor blocks threshold"
    " first_rows allowed needed bad counts work layers first_program program_count",
    "*i64": "gradients momenta weights rates tally table",
    "*fp32": "partial norms lr decay factor eta gained warm slices_of_p p basis small",
    "*fp64": "radii scales progress figures sums wide momentum_norms",
    "i32": "aligned layout_mask pieces programs start",
    "fp32": "rho limit",
}
TYPE = {name: kind for kind, names in TYPES.items() for name in names.split()}
PRODUCT = dict(TILE=products.TILE, INNER=32)
KERNELS: list[tuple[Any, dict[str, Any], dict[str, str]]] = [
    (elementwise.sfw_squares, dict(SPAN=1024), {}),
    (elementwise.sfw_verdict, dict(SPAN=256), {}),
    (elementwise.sfw_sgd, dict(MOMENTUM=True, NESTEROV=False, SPAN=1024), {"decay": "fp32"}),
    (elementwise.sfw_sgd, dict(MOMENTUM=True, NESTEROV=True, SPAN=1024), {"decay": "fp32"}),
    (elementwise.sfw_sgd, dict(MOMENTUM=False, NESTEROV=False, SPAN=1024), {"decay": "fp32"}),
    (elementwise.sfw_momentum, dict(SPAN=1024), {}),
    (elementwise.sfw_move_rows, dict(SPAN=1024), {}),
    *[(rows.sfw_choose_rows, dict(RULE=rule, ROWS=512), {}) for rule in (0, 1, 2, 3, 4, 7)],
    (entries.sfw_entry_momentum, dict(SPAN=entries.SPAN), {}),
    *[(entries.sfw_narrow_entries, dict(PASS=number), {}) for number in (0, 1, 2)],
    *[(entries.sfw_count_entries, dict(PASS=number, SPAN=entries.SPAN), {}) for number in (1, 2)],
    *[
        (kernel, dict(FLAT=flat, SPAN=entries.SPAN, **rule), {})
        for flat in (False, True)
        for kernel, rule in [
            (entries.sfw_weigh_entries, {}),
            (entries.sfw_choose_entries, {"RULE": 4}),
            (entries.sfw_move_entries, {}),
        ]
    ],
    (products.sfw_project, PRODUCT, {}),
    (factors.sfw_gram, dict(TILE=products.TILE), {}),
    (factors.sfw_factorise, dict(STEP=factors.STEP), {}),
    (factors.sfw_basis, dict(TILE=products.TILE, STEP=factors.STEP), {}),
    (products.sfw_coefficients, dict(HALF=True, **PRODUCT), {}),
    (factors.sfw_lead, dict(TILE=products.TILE), {}),
    *[(factors.sfw_choose_directions, dict(RULE=rule), {}) for rule in (2, 4)],
    (products.sfw_move_directions, dict(HALF=True, **PRODUCT), {}),
    *[(row_norms.sfw_row_norms, dict(ORDER=order, SPAN=row_norms.SPAN), {"norms": "*fp64"}) for order in (1, 2)],
]

SMALL = (entries.sfw_choose_entries,)  # all others that read weights must do so 16 bytes at a time


def compile_for(capability: int) -> None:
    for kernel, constants, others in KERNELS:
        signature = {
            name: "constexpr" if name in constants else others.get(name) or TYPE[name] for name in kernel.arg_names
        }
        source = ASTSource(fn=kernel, signature=signature, constexprs=constants)
        code = triton.compile(source, target=GPUTarget("cuda", capability, 32)).asm["ptx"]
        wide = bool(re.search(r"ld\.global\S*\.v4|cp\.async\S* [^;]*, 0x10,", code))
        assert wide or not {"gradients", "momenta", "weights"} & set(kernel.arg_names) or kernel in SMALL, (
            kernel.__name__
        )
        print(kernel.__name__)


if __name__ == "__main__":
    compile_for(int(sys.argv[1]))
