/* What phub/phub.h passes by value: types of elements, operations, movements, optimizers. The C
 * form of phub/types.h, which has the formulas. phub/phub.h includes it; the rules for structs are
 * there.
 */
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "phub/export.h"

#ifdef __cplusplus
extern "C" {
#endif

enum {
  PHUB_F32 = 1,
  PHUB_F16 = 2,
  PHUB_BF16 = 3,
  PHUB_F64 = 4,
  PHUB_I32 = 5,
  PHUB_I64 = 6,
  PHUB_U8 = 7
};
enum {
  PHUB_OPERATION_DEFAULT = 0, /* mean with an optimizer, sum without */
  PHUB_SUM = 1,
  PHUB_MEAN = 2,
  PHUB_MIN = 3,
  PHUB_MAX = 4,
  PHUB_PRODUCT = 5,
  PHUB_BITWISE_AND = 6, /* these three: only for integers */
  PHUB_BITWISE_OR = 7,
  PHUB_BITWISE_XOR = 8
};
/* Which elements of a key travel in a round: all, or world_size equal parts. All but the two
 * reductions move bytes. */
enum {
  PHUB_ALL_REDUCE = 0,     /* every rank pushes all elements and receives all */
  PHUB_GATHER = 1,         /* rank r pushes part r and receives all parts */
  PHUB_REDUCE_SCATTER = 2, /* every rank pushes all elements; rank r receives part r */
  PHUB_ALL_TO_ALL = 3,     /* every rank pushes all; rank r receives part r of every rank */
  PHUB_SCATTER = 4,        /* the root pushes all elements; rank r receives part r */
  PHUB_GATHER_TO_ONE = 5   /* rank r pushes part r; the root receives all parts */
};
/* In which order a rank sends; PriorityClass in phub/types.h has the rules. */
enum {
  PHUB_PRIORITY_DEFAULT = 0, /* that of the key's group; otherwise PHUB_PRIORITY_DATA */
  PHUB_PRIORITY_DATA = 1,
  PHUB_PRIORITY_PIPELINE = 2,
  PHUB_PRIORITY_TENSOR = 3
};
/* How gradients are encoded on the wire; phub/compression.h explains each. */
enum {
  PHUB_COMPRESSION_NONE = 0,
  PHUB_COMPRESSION_INT8 = 1,
  PHUB_COMPRESSION_TOPK = 2,
  PHUB_COMPRESSION_RANDOMK = 3
};
enum {
  PHUB_FEEDBACK_DEFAULT = 0, /* on for PHUB_COMPRESSION_TOPK and PHUB_COMPRESSION_RANDOMK */
  PHUB_FEEDBACK_ON = 1,
  PHUB_FEEDBACK_OFF = 2
};
enum {
  PHUB_NONE = 0, /* no optimizer: a round is an all-reduce */
  PHUB_SGD = 1,
  PHUB_MOMENTUM = 2,
  PHUB_NESTEROV = 3,
  PHUB_ADAM = 4,
  PHUB_ADAMW = 5,
  PHUB_ADAGRAD = 6,
  PHUB_RMSPROP = 7,
  PHUB_RMSPROP_MOMENTUM = 8,
  PHUB_RMSPROP_CENTERED = 9
};

/* A view of `count` elements of type PHUB_F32, ... */
typedef struct phub_elements {
  void* data;
  uint64_t count;
  int32_t type;
  int32_t reserved;
} phub_elements;
typedef struct phub_const_elements {
  const void* data;
  uint64_t count;
  int32_t type;
  int32_t reserved;
} phub_const_elements;

/* phub/types.h has the formulas. Hyper-parameters that an optimizer does not have must be 0. */
typedef struct phub_optimizer {
  size_t struct_size;
  int32_t kind; /* PHUB_SGD, ... */
  int32_t reserved;
  double learning_rate;
  double weight_decay;
  double clip_value;
  double momentum;
  double dampening;
  double beta1;
  double beta2;
  double epsilon;
  double learning_rate_decay;
  double initial_accumulator;
  double alpha;
} phub_optimizer;
/* Sets the defaults of phub/types.h for this kind. */
PHUB_API void phub_optimizer_init(phub_optimizer* optimizer, size_t struct_size, int32_t kind);

#ifdef __cplusplus
}
#endif
