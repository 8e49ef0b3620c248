# SPDX-License-Identifier: Apache-2.0
"""The routes by which a call reaches the library, one file each: direct.py (with bypass.py), autograd.py, dispatcher.py
and compiled.py (with callback_script.py). Each route has a function run(call, q, k, v); route.py chooses a route for
each call."""
