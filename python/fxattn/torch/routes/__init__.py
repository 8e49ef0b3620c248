# SPDX-License-Identifier: Apache-2.0
"""The routes of a call: direct.py (with bypass.py), autograd.py, dispatcher.py and compiled.py (with
callback_script.py). Each has a function run(call, q, k, v); route.py chooses one."""
