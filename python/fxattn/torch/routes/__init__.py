# SPDX-License-Identifier: Apache-2.0
"""The routes of a call: direct.py (with bypass.py), autograd.py, dispatcher.py and compiled.py (with
callback_script.py). Each route has a function run(call, q, k, v); route.py chooses a route for each call."""
