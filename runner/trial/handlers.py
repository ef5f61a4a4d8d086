"""The initialize handlers that the programs enter, as every subject in TE's shape names them."""

from __future__ import annotations

NORM_ACT_GEMM = ("NormForward", "NormBackward", "ActLu", "DActLuDBiasQuantize")
SOFTMAX = tuple(
    f"{kind}Softmax{way}"
    for kind in ("Scaled", "ScaledMasked", "ScaledUpperTriangMasked")
    for way in ("Forward", "Backward")
)
ROUTER = tuple(
    f"{router}{way}"
    for router in ("FusedTopkWithScoreFunction", "FusedMoEAuxLoss")
    for way in ("Forward", "Backward")
)
QUANTIZE = ("DBiasQuantize", "Dequantize")
GROUPED = ("GroupedQuantizeV2",)
