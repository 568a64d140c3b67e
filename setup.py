"""Which packages are installed: all of `probing`, and the folders `tasks` and `conf/claims` as parts of it."""

from setuptools import find_packages, setup

ELSEWHERE = {"probing.builtin_claims": "conf/claims", "probing.builtin_tasks": "tasks"}

setup(packages=[*find_packages(include=["probing", "probing.*"]), *ELSEWHERE], package_dir=ELSEWHERE)
