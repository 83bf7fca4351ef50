/* Operations of kernels/ops.py for CPUs, as one translation unit; bound by native.py through ctypes.
 *
 * Two rules shape everything here:
 * 1. Decoding reads every weight once for a handful of rows, so weights stream through registers in
 *    their stored type and all rows of a call use them while they are there.
 * 2. Row invariance: each output element is made by one fixed sequence of operations, whatever the
 *    number of rows, tiles, spans or threads. Tiles differ only in how many such sequences run side
 *    by side. So no reduction is ever left to the compiler's vectoriser.
 *
 * Without a matching libgomp at link time: GOMP_parallel and GOMP_barrier come from the copy that torch has
 * loaded.
 */
#include "native_vec.c"
#include "native_pool.c"
#include "native_tile.c"
#include "native_linear.c"
#include "native_rows.c"
#include "native_attend.c"
#include "native_layer.c"
