# SPDX-License-Identifier: Apache-2.0
"""The kernels' arguments as ctypes structs. Mirrors src/engine/cuda/kernels/common/args.h; test_cuda_kernels.py has the compiler
compare the two (arguments.cu), without a GPU."""
import ctypes as C

p, ll, i32, f32 = C.c_void_p, C.c_longlong, C.c_int, C.c_float


def struct(name, *fields):
    return type(name, (C.Structure,), {"_fields_": [(n, t) for names, t in fields for n in names.split()]})


View = struct("View", ("data", p), ("b h s", ll))
Capture = struct("Capture", ("data", p), ("stride", ll * 5), ("size", i32 * 5), ("rank", i32))
TileList = struct("TileList", ("items counts", p), ("pitch b_rows h_rows", ll))
Diagonal = struct("Diagonal", ("data", p), ("b h", ll), ("zero", i32))
DiagonalGrad = struct("DiagonalGrad", ("data", p), ("b h n", ll), ("zero zero_step size", i32))
Sums = struct("Sums", ("data", p), ("b h", ll))
Vector = struct("Vector", ("data ranges", p), ("b h ranges_b ranges_h", ll))
Divisor = struct("Divisor", ("factor shift", C.c_uint))
Words = struct("Words", ("data", p), ("b h s", ll), ("to ranges", p), ("pitch", ll), ("length kind", i32))
WordPair = struct("WordPair", ("q k", Words))
Args = struct(
    "Args", ("q k v o grad_o grad_q grad_k grad_v", View), ("lse grad_lse", p),
    ("lse_b lse_h lse_s grad_lse_b grad_lse_h grad_lse_s", ll),
    ("lse2 delta grad_q_sum first_share sent next_tile redo q_lens k_lens q_starts k_starts pages", p), ("pages_b", ll),
    ("page_size n_pages", i32), ("sink grad_sink", p), ("list", TileList),
    ("diagonal", Diagonal),
    ("grad_diagonal", DiagonalGrad), ("q_vector k_vector", Vector), ("dense grad_dense", View), ("tensor", Capture * 16),
    ("grad_tensor", p * 16), ("sums", Sums),
    ("f", f32 * 51), ("i", i32 * 32), ("batch heads kv_heads group d dv q_len k_len q_pad", i32),
    ("q_total k_total pad_rows q_tiles tiles section reverse sent_all splits run", i32),
    ("by_group by_splits by_shares by_row_groups by_kv_heads by_order by_section by_last by_heads", Divisor),
    ("cut", i32 * 4), ("scale scale_log2", f32), ("turned", i32),
    ("partial partial_ml", p), ("seed", C.c_uint * 2), ("drop_below", C.c_uint), ("keep_inverse", f32),
    ("scale_at params_at seed_at place_b place_h place_q place_k row_max", p), ("max_b max_h max_s", ll), ("ranges", p * 4))
Map = struct("Map", ("opaque", C.c_ulonglong * 16))
Maps = struct("Maps", ("q k v o grad_o grad_q grad_k grad_v dense grad_dense", Map))
Shape = struct("Shape", ("threads shared_bytes q_rows k_rows store_rows persistent sum_rows parts", i32))
Cut = struct("Cut", ("q_rows k_rows rows columns by_key parts", i32))


def divisor(by):
    shift = (by - 1).bit_length()
    return Divisor((1 << 31 + shift) // by + 1, shift)
