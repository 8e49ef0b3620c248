/* SPDX-License-Identifier: Apache-2.0
 *
 * Lays out canonical text for reading: long lines are broken where the grammar allows, and gradients of one tensor are
 * ordered by element. The result parses to the same program.
 */
#include "explain/explain.h"

#include <string.h>

#define LAYOUT_COLUMNS 100
#define LAYOUT_FURTHER 4 /* additional indent of continuation lines */
#define LAYOUT_DEPTH 8   /* cost of breaking inside a bracket, higher than that of any operator */

/* Returns the cost of a line break at `at`; -1 = not possible. A line can be broken after an operator or comma that a
 * blank follows; breaks at operators that bind tighter cost more. */
static int layout_cost(const char *line, size_t at) {
    static const char *const ends[] = {",?:", "|&", "<>!", "+-^", "*/%"};
    if (at < 2 || line[at] != ' ') return -1;
    char last = line[at - 1], before = line[at - 2];
    if (last == '=' && !strchr("<>=!", before)) return LAYOUT_DEPTH - 1; /* an assignment */
    if (last == '=') last = '<';
    for (int i = 0; i < (int)(sizeof ends / sizeof ends[0]); i++)
        if (strchr(ends[i], last)) return i;
    return -1;
}

/* Returns how many of the n bytes of a line to print before a break, at most `room`. Chooses the break with the lowest
 * cost and bracket depth, if possible not in the first third of the line; without such a break, breaks after the last
 * opening bracket. Returns n if no break is possible. */
static size_t layout_piece(const char *line, size_t n, size_t room) {
    size_t best = 0, bracket = 0;
    int depth = 0, least = 0;
    for (size_t i = 0; i < n && i <= room; i++) {
        depth += (line[i] == '(' || line[i] == '[') - (line[i] == ')' || line[i] == ']');
        if ((line[i] == '(' || line[i] == '[') && i + 1 <= room) bracket = i + 1;
        int cost = layout_cost(line, i);
        if (cost < 0) continue;
        cost += LAYOUT_DEPTH * depth;
        if (best <= room / 3 || cost <= least) {
            best = i;
            least = cost;
        }
    }
    return best ? best : bracket ? bracket : n;
}

static void layout_line(cli_buf *out, int indent, const char *line, size_t n) {
    int further = 0;
    while (n) {
        size_t room = (size_t)(LAYOUT_COLUMNS - indent - further);
        size_t piece = n > room ? layout_piece(line, n, room) : n;
        buf_printf(out, "%*s%.*s\n", indent + further, "", (int)piece, line);
        line += piece;
        n -= piece;
        if (n && *line == ' ') line++, n--;
        further = LAYOUT_FURTHER;
    }
}

/* Returns true if line a, "grad t[2] += ...", sorts after line b of the same tensor. Digits compare as numbers. */
static bool layout_is_after(const char *a, const char *b) {
    size_t name = strcspn(a, "[\n"), digits = 0; /* length of the number at this place of both lines */
    if (strncmp(a, "grad ", 5) != 0 || a[name] != '[' || strncmp(a, b, name + 1) != 0) return false;
    for (; *a == *b && *a != ']' && *a != '\n'; a++, b++) digits = *a >= '0' && *a <= '9' ? digits + 1 : 0;
    size_t mine = digits + strspn(a, "0123456789"), other = digits + strspn(b, "0123456789");
    if (mine && other && mine != other) return mine > other;
    return *a > *b;
}

void explain_layout(cli *c, cli_buf *out, int indent, const char *text) {
    int64_t n = 0;
    for (const char *s = text; *s; s++) n += *s == '\n';
    const char **lines = cli_alloc_array(c, n + 1, sizeof *lines);
    n = 0;
    for (const char *s = text; *s; s += strcspn(s, "\n"), s += *s == '\n') {
        int64_t at = n++;
        for (; at > 0 && layout_is_after(lines[at - 1], s); at--) lines[at] = lines[at - 1];
        lines[at] = s;
    }
    for (int64_t i = 0; i < n; i++) layout_line(out, indent, lines[i], strcspn(lines[i], "\n"));
}
