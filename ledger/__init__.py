"""kvledger: who held every paid GPU-second of LLM inference, and what of it was wasted.

Imports nothing: the hook lives in somebody else's engine.
"""

__version__ = "0.1.0"
