# SPDX-License-Identifier: Apache-2.0
"""What compute-sanitizer says of the kernels, report by report: what is known, by the reason, and what is not.

Reports are told apart by the innermost function of the kernels' sources, so code must know its lines (FXA_CUDA_LINES=1), and by
the kernel. Everything that is not listed here is a mistake of ours until somebody has looked. What is listed:

- Racecheck (seen with 2025.3, of CUDA 13.0) does not follow every order that mbarriers make. A copy of plain memory (bulk_load) is
  the thread's that begins it, and what its barrier counts in bytes is not seen as an order with those who wait; the same copy by a
  tensor map is nobody's, and never reported. Words that a producer leaves (put_word) are read behind the same barriers (take_word).
  Both ways the order is that of a ring (sm90/pipeline.cuh): who fills a buffer arrives at `full`, for which all readers wait; each
  reading warp arrives at `empty` behind its last read (give_back), for which the producer waits. The model of a device holds the
  kernels to it, in orders that are drawn: a read behind give_back is a wrong result there.
- Initcheck does not see what TMA stores by a tensor map. Where a kernel of ours reads such results, from the workspace, it takes
  them for memory that nobody has written: only of cases whose kernels are those of sm90, and of the kernels that read them. It keeps
  256 reports of a launch and says that it dropped the rest: known where all that it kept are, of one kernel.
- Flags of decoding's shares may hold anything before a run (load_flag, sm90/decode_combine.cuh).

The model of a device has initcheck's question too, and sees TMA's stores (tests/model/model_known.h)."""
import collections
import os
import re

SOURCES = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "..", "src", "engine", "cuda", "kernels")
# {writer: allowed reader, None: any reader}
RACES = {"bulk_load": None, "put_word": ("take_word",)}
READS = ("load_flag",)
READ_FROM_TMA = ("fxa_grad_q_finish", "fxa_pages_scatter", "fxa_convert_copy", "fxa_convert_merge", "fxa_captured_dense",
                 "convert_load", "finish_block")  # the last two are inlined in some of the others

# A line such as "Read access at take_word(unsigned int)+0x1000 in common/ptx.cuh:157": a kernel, or a function that is
# inlined in one.
ACCESS = re.compile(r"(Read|Write) access at (?:<unnamed>::)?(\w+)[^+]*\+0x[0-9a-f]+(?: in (\S+?):(\d+))?")
PLACE = re.compile(r"^\s*at (?:<unnamed>::)?(\w+)[^+]*\+0x[0-9a-f]+(?: in (\S+?):(\d+))?")
SUMMARY = re.compile(r"ERROR SUMMARY: (\d+) errors?(?! were)|RACECHECK SUMMARY: \d+ hazards? displayed \((\d+) errors?, (\d+) warnings?\)")
OVERFLOW, KEPT = "Error buffer overflow has been detected", 256  # printed after the reports of a launch
SKIPPED = re.compile(r"^ \d+ errors were skipped \(error buffer overflow\)")
FUNCTION = re.compile(r"FXA_INLINE[^(]*?(\w+)\(")


def function_of(path, line):
    """The innermost function that a line of the kernels' sources is in; "" where there is none."""
    path = os.path.join(SOURCES, *(path or "").split("/")[-2:])
    if not line or not os.path.isfile(path):
        return ""
    with open(path) as source:
        found = [FUNCTION.search(text) for text in source.read().split("\n")[:int(line)]]
    names = [match.group(1) for match in found if match]
    return names[-1] if names else ""


class Reports:
    """Returns the reports of one process, from its lines in their order."""

    def __init__(self):
        self.known, self.unknown = collections.Counter(), []
        self.block, self.waiting = [], []  # lines of a report; reports of the case that runs
        self.printed, self.all = 0, None  # all: as the summary has it
        self.launch = []  # kernels of the reads that were reported since records were dropped last
        self.dropped = True  # all of them with a reason

    def take(self, line):
        if line.startswith("case "):
            self.settle(re.search(r" on (\S+)", line))
        elif line.startswith("====="):
            self.part(line.lstrip("=").rstrip())

    def part(self, text):
        summary = SUMMARY.search(text)
        if summary:
            self.all = sum(int(n) for n in summary.groups() if n)
        elif text and " COMPUTE-SANITIZER" not in text and "SUMMARY" not in text:
            self.block.append(text)
        elif self.block:
            self.close()

    def close(self):
        block, self.block = self.block, []
        self.printed += 1
        if "Race reported" in block[0]:
            pairs = self.pairs(block)
            reason = "; ".join(sorted(set(self.race(*pair) for pair in pairs))) if pairs else ""
            self.put(reason if pairs and all(self.race(*pair) for pair in pairs) else "", block)
        elif block[0].startswith(" Uninitialized __global__ memory read") and len(block) > 1 and PLACE.search(block[1]):
            self.read(block, *PLACE.search(block[1]).groups())
        elif OVERFLOW in block[0]:
            self.drop(block)
        else:
            self.put("of the same launches, dropped" if SKIPPED.search(block[0]) and self.dropped else "", block)

    def drop(self, block):
        kept, self.launch = self.launch[-KEPT:], []
        kernel = kept[0] if len(kept) == KEPT and len(set(kept)) == 1 else ""
        if kernel in READ_FROM_TMA:
            self.waiting.append((kernel, block))
        else:
            self.dropped = False
            self.put("", block)

    @staticmethod
    def pairs(block):
        """Returns the first access with each of the others, as (kind, position that the tool reports, function)."""
        found = [ACCESS.search(line) for line in block]
        ends = [(m.group(1), m.group(2), function_of(m.group(3), m.group(4))) for m in found if m]
        return [(ends[0], other) for other in ends[1:]]

    @staticmethod
    def race(first, second):
        """Why it is none; "" where it is one."""
        if sorted((first[0], second[0])) != ["Read", "Write"]:
            return ""
        write, read = (first, second) if first[0] == "Write" else (second, first)
        if write[2] in RACES and (RACES[write[2]] is None or read[2] in RACES[write[2]]):
            return "%s and %s" % (write[2], read[2] or "any")
        return ""

    def read(self, block, kernel, path, line):
        function = function_of(path, line)
        self.launch.append(kernel)
        if function in READS:
            self.put("%s in %s" % (function, kernel), block)
        elif kernel in READ_FROM_TMA:
            self.waiting.append((kernel, block))
        else:
            self.put("", block)

    def put(self, reason, block):
        if reason:
            self.known[reason] += 1
        else:
            self.unknown.append("\n".join(block))

    def settle(self, ran):
        """A case is done: by which kernels is known now."""
        for kernel, block in self.waiting:
            self.put("%s reads what TMA has stored" % kernel if ran and "sm90" in ran.group(1) else "", block)
        self.waiting = []

    def end(self):
        if self.block:
            self.close()
        self.settle(None)
        if self.all is None:
            self.unknown.append("there is no summary")
        elif self.all > self.printed:
            self.unknown.append("%d of %d reports were not printed" % (self.all - self.printed, self.all))
        return self
