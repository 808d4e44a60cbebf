/* A program in C11 that uses phub's installed header, found by pkg-config: trains two keys for a
 * few iterations, waits for them with a queue, and checks every number. */
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
  int failed = Train(job, queue);
  phub_queue_free(queue);
  if (!failed && phub_job_leave(job, &error) != PHUB_OK) failed = Fail("leave", error);
  phub_job_free(job);
  phub_session_free(session);
  return failed;
}
