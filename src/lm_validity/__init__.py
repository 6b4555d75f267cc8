"""lm-validity: how far can a language-model benchmark be trusted?"""

__version__ = "0.3.0"
