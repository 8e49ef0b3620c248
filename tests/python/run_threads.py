# SPDX-License-Identifier: Apache-2.0
"""Threads that tests start together."""
import threading


def run_threads(work, count=8):
    """work(number) in `count` threads; what one of them raises, and one that does not end, fails the test."""
    failures = []

    def guarded(number):
        try:
            work(number)
        except BaseException as error:
            failures.append(error)
    threads = [threading.Thread(target=guarded, args=(n,)) for n in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    assert not failures and not any(thread.is_alive() for thread in threads)
