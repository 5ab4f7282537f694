"""Figures that are shipped, each with what it was measured on. A host's own (`mpsctl measure`) go before them."""

from mpsctl.model.costs import Measurement

_H200 = "an H200, driver 580.159.04"

SHIPPED = (
    Measurement("NVIDIA H200", "580.159", 100.0, 514, 66, reserved_mib=616, multiprocessors=132, measured_on=_H200),
    Measurement("NVIDIA H200", "580.159", 50.0, 271, 66, reserved_mib=616, multiprocessors=66, measured_on=_H200),
)
