"""Draft heads: DART and EAGLE3 as torch modules, their configs, strict loading and saving."""

from dart_core.heads.config import HeadConfig, default_taps
from dart_core.heads.dart import DartHead
from dart_core.heads.eagle3 import Eagle3Head
from dart_core.heads.layers import HeadCache
from dart_core.heads.loading import (
    head_kind,
    load_dart_head,
    load_eagle3_head,
    load_head,
    save_head,
)

__all__ = [
    "DartHead",
    "Eagle3Head",
    "HeadCache",
    "HeadConfig",
    "default_taps",
    "head_kind",
    "load_dart_head",
    "load_eagle3_head",
    "load_head",
    "save_head",
]
