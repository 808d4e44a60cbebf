/* A program in C11 that uses phub's installed header, found by pkg-config: trains two keys for a
 * few iterations, waits for them with a queue, checks every number, and uses a group. */
#include <phub/phub.h>
#include <stdio.h>
#include <string.h>

enum { kElements = 100000, kKeys = 2, kIterations = 3 };

static int Fail(const char* what, phub_error* error) {
  fprintf(stderr, "outside-c: %s: %s (job %s, key %s, rank %lld)\n", what,
          phub_error_message(error), phub_error_job(error), phub_error_key(error),
          (long long)phub_error_rank(error));
  phub_error_free(error);
  return 1;
}

/* One round of every key, with all gradients 4. */
static int Iterate(phub_queue* queue, phub_key* const* keys, float expected) {
  phub_error* error = NULL;
  for (uint64_t k = 0; k < kKeys; ++k) {
    phub_elements gradients = phub_key_gradients(keys[k]);
    float* values = gradients.data;
    for (uint64_t i = 0; i < gradients.count; ++i) values[i] = 4.0f;
    phub_handle* handle = NULL;
    if (phub_key_push_pull(keys[k], &handle, &error) != PHUB_OK) return Fail("push", error);
    if (phub_queue_add(queue, handle, k, &error) != PHUB_OK) return Fail("queue", error);
    phub_handle_free(handle);
  }
  for (int done = 0; done < kKeys; ++done) {
    uint64_t k = 0;
    phub_result result = PHUB_UNKNOWN;
    if (phub_queue_wait(queue, INT64_C(20000000000), &k, &result, &error) != PHUB_OK ||
        result != PHUB_OK)
      return Fail("wait", error);
    phub_const_elements parameters = phub_key_parameters(keys[k]);
    const float* values = parameters.data;
    for (uint64_t i = 0; i < parameters.count; ++i) {
      if (values[i] == expected) continue;
      fprintf(stderr, "outside-c: key %s: %f, expected %f\n", phub_key_name(keys[k]),
              (double)values[i], (double)expected);
      return 1;
    }
  }
  return 0;
}

static int Train(phub_job* job, phub_queue* queue) {
  static float initial[kElements];
  phub_optimizer optimizer;
  phub_optimizer_init(&optimizer, sizeof optimizer, PHUB_SGD);
  optimizer.learning_rate = 0.5;
  phub_key_spec specs[kKeys];
  for (int k = 0; k < kKeys; ++k) {
    phub_key_spec_init(&specs[k], sizeof specs[k]);
    specs[k].element_count = kElements;
    specs[k].optimizer = &optimizer;
  }
  specs[0].name = "weights";
  specs[1].name = "biases";
  phub_key* keys[kKeys];
  phub_error* error = NULL;
  if (phub_job_add_keys(job, specs, kKeys, keys, &error) != PHUB_OK) return Fail("keys", error);
  for (int i = 0; i < kElements; ++i) initial[i] = 10.0f;
  const phub_const_elements values = {initial, kElements, PHUB_F32, 0};
  int failed = 0;
  for (int k = 0; k < kKeys; ++k)
    if (phub_job_initialize(job, keys[k], &values, &error) != PHUB_OK)
      failed = Fail("initialize", error);
  for (int i = 1; i <= kIterations && !failed; ++i)
    failed = Iterate(queue, keys, 10.0f - 2.0f * (float)i);
  for (int k = 0; k < kKeys; ++k) phub_key_free(keys[k]);
  return failed;
}

/* A group of this rank alone, with a key and a pool. */
static int UseGroup(phub_job* job) {
  phub_error* error = NULL;
  phub_group* group = NULL;
  const uint32_t ranks[] = {0};
  if (phub_job_new_group(job, "alone", ranks, 1, &group, &error) != PHUB_OK)
    return Fail("new group", error);
  if (phub_group_size(group) != 1 || phub_group_ranks(group)[0] != 0) return 1;
  phub_key_spec spec;
  phub_key_spec_init(&spec, sizeof spec);
  spec.name = "sum";
  spec.element_count = 1;
  phub_key* key = NULL;
  phub_handle* handle = NULL;
  if (phub_group_add_keys(group, &spec, 1, &key, &error) != PHUB_OK)
    return Fail("keys of a group", error);
  *(float*)phub_key_gradients(key).data = 4.0f;
  if (phub_key_push_pull(key, &handle, &error) != PHUB_OK) return Fail("push", error);
  if (phub_handle_wait(handle, INT64_C(20000000000), &error) != PHUB_OK) return Fail("wait", error);
  phub_handle_free(handle);
  const int failed = *(const float*)phub_key_parameters(key).data != 4.0f;
  phub_key_free(key);
  phub_pool_options options;
  phub_pool_options_init(&options, sizeof options);
  options.name = "metrics";
  phub_pool* pool = NULL;
  if (phub_group_add_pool(group, &options, &pool, &error) != PHUB_OK)
    return Fail("pool of a group", error);
  phub_pool_free(pool);
  if (phub_group_remove(group, &error) != PHUB_OK) return Fail("remove the group", error);
  phub_group_free(group);
  return failed;
}

int main(int argc, char** argv) {
  phub_error* error = NULL;
  phub_session* session = NULL;
  phub_job* job = NULL;
  phub_queue* queue = NULL;
  phub_job_options options;
  if (argc != 3) return 2;
  if (strcmp(phub_version(), argv[2]) != 0) {
    fprintf(stderr, "outside-c: the library is %s\n", phub_version());
    return 1;
  }
  if (phub_connect(argv[1], NULL, &session, &error) != PHUB_OK) return Fail("connect", error);
  phub_job_options_init(&options, sizeof options);
  options.job = "outside-c";
  if (phub_session_join(session, &options, &job, &error) != PHUB_OK) return Fail("join", error);
  if (phub_queue_create(&queue, &error) != PHUB_OK) return Fail("queue", error);
  int failed = Train(job, queue) || UseGroup(job);
  phub_queue_free(queue);
  if (!failed && phub_job_leave(job, &error) != PHUB_OK) failed = Fail("leave", error);
  phub_job_free(job);
  phub_session_free(session);
  return failed;
}
