"""Who may import whom (design, section 1): read from the sources, and seen in fresh processes."""

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
FILES = sorted((ROOT / "harness").rglob("*.py"))

ROOMS = ["schemes", "model", "data", "training", "sweep", "analysis"]  # as data flows
FREE = {"harness", "harness.errors", "harness.fields"}  # for all to import
# These import what they like, and no room imports them.
TOP = {"harness.cli", "harness.commands", "harness.__main__"}
