/* SPDX-License-Identifier: Apache-2.0
 *
 * The parser with extreme texts: too deep, too long, too much work, garbage, no memory. Each gives an error quickly.
 */
#include "support/memory/fail_alloc.h"
#include "support/fixtures/own_context.h"

#include <pthread.h>
#include <time.h>

/* Sanitizers need more stack and time, and an unoptimised library (make coverage, without asserts) more time. */
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
enum { PLIM_STACK = 4 << 20, PLIM_SECONDS = 200 };
#elif !FXA_ASSERT
enum { PLIM_STACK = 256 << 10, PLIM_SECONDS = 200 };
#elif defined(__s390x__) /* a call takes at least 160 bytes of stack */
enum { PLIM_STACK = 512 << 10, PLIM_SECONDS = 20 };
#else
enum { PLIM_STACK = 256 << 10, PLIM_SECONDS = 20 };
#endif

/* Parses `times` copies of middle between head and tail; expects this status at this column. */
static void plim_repeated(const char *head, const char *middle, size_t times, const char *tail, fxa_status want,
                          int column) {
    size_t step = strlen(middle), start = strlen(head), size = start + step * times + strlen(tail);
    char *text = malloc(size + 1);
    fxa_error err;
    fxa_program *p = NULL;
    T_REQUIRE(text);
    memcpy(text, head, start);
    for (size_t i = 0; i < times; i++) memcpy(text + start + i * step, middle, step);
    memcpy(text + start + times * step, tail, strlen(tail) + 1);
    T_STATUS(own_parse(FXA_PROGRAM_SCORE, text, size, &p, &err), want);
    if (want != FXA_OK) T_INT(err.column, column);
    fxa_program_destroy(p);
    free(text);
}

TEST(nesting_is_limited_not_the_stack) {
    plim_repeated("score = ", "(", 200000, "1", FXA_E_LIMIT, 9 + 256);
    plim_repeated("score = ", "-", 200000, "1", FXA_E_LIMIT, 9 + 255);
    plim_repeated("mask = ", "!", 200000, "true", FXA_E_LIMIT, 8 + 255);
    plim_repeated("score = ", "2**", 200000, "1", FXA_E_LIMIT, 9 + 3 * 255 + 1);
    plim_repeated("score = ", "true?1:", 100000, "1", FXA_E_LIMIT, 9 + 7 * 255 + 5);
    plim_repeated("score = ", "tanh(", 100000, "1", FXA_E_LIMIT, 9 + 5 * 256);
    plim_repeated("tensor t : i32[1];score = ", "t[", 100000, "1", FXA_E_LIMIT, 27 + 2 * 256);
    plim_repeated("mask = ", "any(i,1,", 100000, "1", FXA_E_LIMIT, 8 + 8 * 255 + 6);
    plim_repeated("score = ", "(", 255, "1", FXA_E_PROGRAM, 9 + 254);
    plim_repeated("score = ", "-", 255, "1", FXA_OK, 0);
}

/* Parses the deepest accepted text, with every operator pending at every level. */
static void *plim_deepest(void *unused) {
    static const char level[] = "true || true && 1 == 1 | 1 ^ 1 & 1 << 1 + 1 * int(";
    static char text[254 * sizeof level + 512];
    size_t n = (size_t)snprintf(text, sizeof text, "mask = ");
    t_program *p = NULL;
    fxa_error err;
    (void)unused;
    for (int i = 0; i < 254; i++) n += (size_t)snprintf(text + n, sizeof text - n, "%s", level);
    n += (size_t)snprintf(text + n, sizeof text - n, "true");
    for (int i = 0; i < 254; i++) text[n++] = ')';
    T_OK(own_parse(FXA_PROGRAM_SCORE, text, n, &p, &err));
    return NULL;
}

/* Parses functions that call each other to the maximum depth. */
static void *plim_deepest_calls(void *unused) {
    static char text[32000];
    size_t n = (size_t)snprintf(text, sizeof text, "fn f0(x) = x\n");
    t_program *p = NULL;
    fxa_error err;
    (void)unused;
    for (int i = 1; i < 255; i++)
        n += (size_t)snprintf(text + n, sizeof text - n, "fn f%d(x) = true || true && 1 == f%d(x) + 1\n", i, i - 1);
    n += (size_t)snprintf(text + n, sizeof text - n, "mask = f254(true)");
    T_OK(own_parse(FXA_PROGRAM_SCORE, text, n, &p, &err));
    return NULL;
}

TEST(the_deepest_text_needs_little_stack) {
    size_t stack = PLIM_STACK;
    pthread_attr_t attributes;
    pthread_t thread;
    T_REQUIRE(pthread_attr_init(&attributes) == 0 && pthread_attr_setstacksize(&attributes, stack) == 0);
    T_REQUIRE(pthread_create(&thread, &attributes, plim_deepest, NULL) == 0);
    T_INT(pthread_join(thread, NULL), 0);
    T_REQUIRE(pthread_create(&thread, &attributes, plim_deepest_calls, NULL) == 0);
    T_INT(pthread_join(thread, NULL), 0);
    (void)pthread_attr_destroy(&attributes);
}

TEST(text_is_limited) {
    plim_repeated("#", " ", FXA_MAX_TEXT - 1, "", FXA_OK, 0);
    plim_repeated("#", " ", FXA_MAX_TEXT, "", FXA_E_LIMIT, 1);
    plim_repeated("#", " ", 2 * FXA_MAX_TEXT, "", FXA_E_LIMIT, 1);
    fxa_text texts[2] = {{NULL, "#", 1}, {NULL, NULL, 0}};
    fxa_parse_config c = FXA_PARSE_CONFIG_INIT;
    fxa_program *p = NULL;
    char *big = calloc(1, FXA_MAX_TEXT);
    T_REQUIRE(big);
    memset(big, '\n', FXA_MAX_TEXT);
    texts[1].data = big;
    texts[1].size = FXA_MAX_TEXT;
    c.texts = texts;
    c.n_texts = 2;
    T_STATUS(fxa_program_parse_texts(ctx, &c, &p, &err), FXA_E_LIMIT);
    T_INT(err.part, 1);
    texts[1].size--;
    T_OK(fxa_program_parse_texts(ctx, &c, &p, &err));
    fxa_program_destroy(p);
    free(big);
}

static double plim_seconds(void) {
    struct timespec t;
    (void)clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* Time limits far above the actual time (0.7 s; ThreadSanitizer: 25 s), far below that of a quadratic parser, which
 * would take minutes for 50000 lines. */
TEST(long_texts_and_loops_end_soon) { /* R-104 */
    double start = plim_seconds();
    plim_repeated("", "mask = mask && q >= k\n", 47000, "", FXA_OK, 0);
    plim_repeated("", "let a = q + 1\n", 70000, "", FXA_OK, 0);
    plim_repeated("", "fn f(x) = x + 1\n", 60000, "", FXA_OK, 0);
    plim_repeated("fn f(x) = x;mask = true", "&&f(true)", 100000, "", FXA_OK, 0);
    /* The work limit is reached in the last call, outside of all brackets. */
    plim_repeated("fn f(x) = x&&x&&x\n", "mask = f(true)\n", 50000, "", FXA_OK, 0);
    plim_repeated("fn f(x) = x&&x&&x\n", "mask = f(true)\n", 50001, "", FXA_E_LIMIT, 11);
    plim_repeated("", "score = score + 1\n", 58000, "", FXA_E_LIMIT, 15);
    plim_repeated("mask = true", "&&true", 150000, "&& a", FXA_E_PROGRAM, 900015);
    plim_repeated("score = ", "sum(i, 64, ", 4, "score))))", FXA_E_LIMIT, 53);
    plim_repeated("mask = ", "any(i, 64, ", 60, "false))))", FXA_E_LIMIT, 668);
    char *lets = malloc(FXA_MAX_TEXT);
    size_t n = 0;
    fxa_program *p = NULL;
    T_REQUIRE(lets);
    for (int i = 0; n + 100 < FXA_MAX_TEXT; i++) n += (size_t)snprintf(lets + n, 100, "let name%d = q\n", i);
    n += (size_t)snprintf(lets + n, 100, "score = nmae1");
    T_STATUS(own_parse(FXA_PROGRAM_SCORE, lets, n, &p, &err), FXA_E_PROGRAM);
    T_HAS(err.text, "did you mean 'name1'?");
    free(lets);
    double took = plim_seconds() - start;
    if (took > (double)PLIM_SECONDS) T_FAIL("took %.1f s\n", took);
}

/* The limit on tokens read by loops is reached at each token of a body that contains every kind of token: iterations of
 * a preceding loop shift that point token by token. */
TEST(the_last_token_of_unrolled_loops_may_be_any) {
    static const char body[] = "min((-i) ** -2, t[i, 0], 2.5, sum(j, 1 + 1, j)) + (i < 1 ? 1 : !(i == 2) ? pi : q)";
    char text[512];
    bool hit[sizeof text] = {false};
    int places = 0;
    for (int rounds = 1; rounds <= t_scaled(60); rounds++) {
        fxa_program *p = NULL;
        size_t n = (size_t)snprintf(text, sizeof text,
                                    "tensor t : f32[2]\nscore = sum(z, %d, 0) + sum(x, 64, sum(y, 2, sum(i, 64, %s)))",
                                    rounds, body);
        T_STATUS(own_parse(FXA_PROGRAM_SCORE, text, n, &p, &err), FXA_E_LIMIT);
        T_HAS(err.text, "loops and calls read more than 250000 tokens again");
        T_CHECK(p == NULL && err.line == 2 && err.column > 0 && (size_t)err.column < n);
        places += !hit[err.column];
        hit[err.column] = true;
    }
    T_CHECK(places > t_scaled(60) / 2);
}

TEST(params_and_tensors_are_limited) {
    char text[8192];
    fxa_program *p = NULL;
    for (int tensors = 0; tensors < 2; tensors++)
        for (int count = 64; count <= 65; count++) {
            size_t n = 0;
            for (int i = 0; i < count; i++)
                n += (size_t)snprintf(text + n, sizeof text - n, "%s x%d : %s\n", tensors ? "tensor" : "param", i,
                                      tensors ? "i8[0]" : "int");
            T_STATUS(own_parse(FXA_PROGRAM_SCORE, text, n, &p, &err), count == 64 ? FXA_OK : FXA_E_LIMIT);
            if (count == 65) T_INT(err.line, 65);
            fxa_program_destroy(p);
        }
}

/* Arbitrary bytes: a program, or an error with a position inside the text, never a crash. */
TEST(names_and_types_of_the_maximum_length) {
    char name[FXA_MAX_NAME + 1], text[400];
    fxa_program *p = NULL;
    memset(name, 'n', FXA_MAX_NAME);
    name[FXA_MAX_NAME] = '\0';
    snprintf(text, sizeof text, "param %s : float = 1.5; tensor t%s : f32[1]\nscore = %s * t%s[q]", name, name + 1,
             name, name + 1);
    T_OK(own_parse(FXA_PROGRAM_SCORE, text, SIZE_MAX, &p, &err));
    T_STR(fxa_program_param(p, 0).name, name);
    T_INT(strlen(fxa_program_tensor(p, 0).name), FXA_MAX_NAME);
    fxa_program_destroy(p);
    for (int tensor = 0; tensor < 2; tensor++) {
        snprintf(text, sizeof text, "%s x : %s", tensor ? "tensor" : "param", name);
        T_STATUS(own_parse(FXA_PROGRAM_SCORE, text, SIZE_MAX, &p, &err), FXA_E_PROGRAM);
        T_HAS(err.text, tensor ? "expected the storage type" : "expected the type, float or int");
        T_INT(err.length, FXA_MAX_NAME);
    }
}

TEST(garbage_gets_an_error_with_a_place) {
    static const char *const pieces[] = {
        "score", "mask", "=",  "(",    ")",      "[",       "]",      "q",    "k",     "let ",      "x",
        "1",     ".5",   "0x", "+",    "-",      "**",      "?",      ":",    ",",     "\n",        ";",
        "#",     "sum(", "i",  "f32",  " ",      "&&",      "<",      "==",   "!",     "~",         "t",
        "a",     "\xff", "+=", "tanh", "where(", "tensor ", "param ", "true", "grad ", "2147483648"};
    t_rng rng = {t_seed()};
    char text[256];
    for (int round = t_scaled(60000); round > 0; round--) {
        size_t n = 0;
        t_program *p = NULL;
        bool raw = t_int(&rng, 0, 3) == 0;
        while (n < 200 && t_int(&rng, 0, 30)) {
            const char *piece = pieces[t_int(&rng, 0, (int64_t)(sizeof pieces / sizeof *pieces) - 1)];
            if (raw)
                text[n++] = (char)t_int(&rng, 0, 255);
            else
                n += (size_t)snprintf(text + n, sizeof text - n, "%s", piece);
        }
        fxa_status s = own_parse((fxa_program_kind)t_int(&rng, 0, 2), text, n, &p, &err);
        if ((s == FXA_OK) != (p != NULL)) T_FAIL("status %d with program %p\n", (int)s, (void *)p);
        if (s != FXA_OK && (err.line < 1 || err.column < 1 || err.length < 1 || err.column > (int32_t)n + 1))
            T_FAIL("no place: %d:%d+%d %s\n", err.line, err.column, err.length, err.text);
    }
}

/* Fails each allocation in turn: an error, no leak, and the next parse works. */
TEST(memory_failures_at_every_index) {
    static const char text[] = "param c : float\ntensor t : f32[1]\nlet d = q - k\nfn cap(x, y) = y * tanh(x / y)\n"
                               "fn f(x) = cap(x + t[h] * d, c)\nscore = f(score)\n"
                               "mask = q >= k && any(i, 3, d == i)";
    fail_alloc f = FAIL_ALLOC_INIT;
    fxa_context *own = fail_alloc_context(&f);
    bool reached = true;
    T_REQUIRE(own);
    size_t before = f.live_bytes;
    for (size_t k = 1; reached && k < 10000; k++) {
        fxa_program *p = NULL;
        size_t n;
        fail_alloc_arm(&f, k, false);
        fxa_status s = fxa_program_parse(own, text, SIZE_MAX, &p, &err);
        if (s == FXA_OK) s = fxa_program_print(p, NULL, 0, &n, &err);
        reached = f.failures > 0;
        fxa_program_destroy(p);
        T_INT(f.live_bytes, before);
        T_INT(s, reached ? FXA_E_MEMORY : FXA_OK);
    }
    T_CHECK(!reached);
    fxa_context_destroy(own);
    T_INT(f.live_bytes, 0);
    T_INT(f.mistakes, 0);
}

T_MAIN
