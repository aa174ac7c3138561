/* A GPU for tests. It runs code that was written for the threads of a launch, compiled for this CPU: each thread is a
 * fibre, all blocks are resident at once, and the order in which warps run is drawn from a seed.
 *
 * Faults that it reports: threads that wait for each other for ever; threads that meet at different places; a thread
 * that ends while others wait for it; and races: two accesses to one byte, one of them a write, by two threads that no
 * barrier and no shuffle has put in order. */
#define _GNU_SOURCE
#include <math.h>
#include <setjmp.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <ucontext.h>

enum { STACK_BYTES = 512 * 1024, WARP = 32, NOBODY = -1, GUARD = 64, GARBAGE = 0x7f };
enum { RUNS, IN_WARP, IN_BLOCK, IN_LAUNCH, ENDED };
enum { BEGAN = 1, PARKED, STOPPED };

typedef void (*Step)(void *, void *, void *, void *);

typedef struct {
  int state, started, block, warp;
  jmp_buf here;
  ucontext_t context;
  char *stack;
} Thread;

/* A barrier of a warp, a block or the launch. rounds: how often all its threads have met. */
typedef struct {
  int live, arrived, place;
  uint32_t rounds;
} Barrier;

/* The rounds of the three barriers of a thread at the moment of an access. */
typedef struct {
  uint32_t warp, block, launch;
} Moment;

/* What is known of one byte: its last write, and the last reads of two threads; lines: where they stand. added: whether
 * the write was an atomic addition; several: whether other threads have added as well since all have met. */
typedef struct {
  uintptr_t byte;
  int writer, readers[2], line, lines[2], added, several;
  Moment written, read[2];
} Record;

static struct {
  Step step;
  void *arguments[4];
  int blocks, block, threads, warps_of_block, current, failed, watches;
  Thread *thread;
  Barrier *warp, *of_block, launch;
  int32_t *fragments; /* six words of each thread, twice as well */
  int32_t *exchanged; /* two words of each thread: a fast thread may exchange again while a slow one still reads */
  char *shared;
  size_t shared_bytes;
  Record *records;
  size_t used;
  uint64_t seed;
  jmp_buf scheduler;
  char report[200];
} gpu;

enum { TOGETHER = 256 }; /* neighbors whose records lie together: pages that nobody needs are never touched */

static const size_t RECORDS = (size_t)1 << 22;

static char **stacks; /* of earlier launches, for the next ones */
static int stack_count;

const char *gpu_report(void) { return gpu.report; }

static int block_of(int thread) { return gpu.thread[thread].block; }
static int warp_of(int thread) { return gpu.thread[thread].warp; }

static void fail(const char *what, long one, long other) {
  if (!gpu.failed) snprintf(gpu.report, sizeof gpu.report, "%s (%ld, %ld)", what, one, other);
  gpu.failed = 1;
}

static void leave(int how) { _longjmp(gpu.scheduler, how); }

static void meet(Barrier *barrier, int scope, int first, int end, int place) {
  if (barrier->arrived && barrier->place != place) {
    fail("threads meet at different places", barrier->place, place);
    leave(STOPPED);
  }
  barrier->place = place;
  if (++barrier->arrived < barrier->live) {
    gpu.thread[gpu.current].state = scope;
    if (_setjmp(gpu.thread[gpu.current].here) == 0) leave(PARKED);
    return;
  }
  barrier->arrived = 0;
  barrier->rounds++;
  for (int t = first; t < end; t++)
    if (gpu.thread[t].state == scope) gpu.thread[t].state = RUNS;
}

int32_t dev_thread(void) { return gpu.current; }
void *dev_shared(void) { return gpu.shared + block_of(gpu.current) * (gpu.shared_bytes + GUARD); }

void dev_warp_barrier(int32_t place) {
  int t = gpu.current, first = t - t % gpu.block % WARP, end = first + WARP, last = (block_of(t) + 1) * gpu.block;
  meet(&gpu.warp[warp_of(t)], IN_WARP, first, end < last ? end : last, place);
}

void dev_barrier(int32_t place) { meet(&gpu.launch, IN_LAUNCH, 0, gpu.threads, place); }

void dev_block_barrier(int32_t place) {
  int b = block_of(gpu.current);
  if (gpu.blocks == 1) return dev_barrier(place);
  meet(&gpu.of_block[b], IN_BLOCK, b * gpu.block, (b + 1) * gpu.block, place);
}

int32_t dev_exchange(int32_t value, int32_t distance, int32_t place) {
  int t = gpu.current;
  int32_t *words = gpu.exchanged + (gpu.warp[warp_of(t)].rounds & 1) * gpu.threads;
  int other = t - t % gpu.block % WARP + ((t % gpu.block % WARP) ^ distance);
  words[t] = value;
  dev_warp_barrier(place);
  return words[other];
}

/* A product of tensor cores: 16 rows of 8 words of a, given as four words of each lane, by 8 columns of 8 words of b, given
 * as two; four of the 16 x 8 sums of each lane. Lane 4 g + t has rows g and g + 8, words t and t + 4, columns 2 t and
 * 2 t + 1. numbers: of a word. */
typedef float Four __attribute__((vector_size(16)));
typedef double (*Number)(uint32_t word, int which);

static double tf32_of(uint32_t word, int which) {
  float x;
  (void)which;
  word &= 0xffffe000u;
  memcpy(&x, &word, 4);
  return x;
}

static double bf16_of(uint32_t word, int which) {
  uint32_t bits = which ? word & 0xffff0000u : word << 16;
  float x;
  memcpy(&x, &bits, 4);
  return x;
}

static double f16_of(uint32_t word, int which) {
  uint32_t bits = which ? word >> 16 : word & 0xffffu, exponent = bits >> 10 & 31, rest = bits & 1023;
  double x = exponent == 31 ? (rest ? NAN : INFINITY) : exponent ? ldexp(1024 + rest, (int)exponent - 25) : ldexp(rest, -24);
  return bits >> 15 ? -x : x;
}

/* The NaN that a GPU computes: all its bits are set. */
static float nan_of_gpu(void) {
  int32_t bits = 0x7FFFFFFF;
  float x;
  memcpy(&x, &bits, sizeof x);
  return x;
}

static Four mma(const int32_t *own, Four sums, int32_t place, int numbers, Number number) {
  int t = gpu.current, first = t - t % gpu.block % WARP, lane = t - first, g = lane / 4;
  int32_t(*words)[6] = (int32_t(*)[6])gpu.fragments + (gpu.warp[warp_of(t)].rounds & 1) * gpu.threads;
  memcpy(words[t], own, sizeof words[t]);
  dev_warp_barrier(place);
  for (int c = 0; c < 4; c++) {
    int row = g + c / 2 * 8, column = lane % 4 * 2 + c % 2;
    double sum = sums[c];
    for (int k = 0; k < 8; k++)
      for (int i = 0; i < numbers; i++)
        sum += number(words[first + row % 8 * 4 + k % 4][row / 8 + k / 4 * 2], i) * number(words[first + column * 4 + k % 4][4 + k / 4], i);
    sums[c] = sum == sum ? (float)sum : nan_of_gpu();
  }
  return sums;
}

#define MMA(kind, numbers) \
  Four dev_mma_##kind(int32_t a, int32_t b, int32_t c, int32_t d, int32_t e, int32_t f, Four sums, int32_t place) { \
    return mma((int32_t[]){a, b, c, d, e, f}, sums, place, numbers, kind##_of); \
  }
MMA(tf32, 1)
MMA(f16, 2)
MMA(bf16, 2)

static Moment now(void) {
  int t = gpu.current;
  return (Moment){gpu.warp[warp_of(t)].rounds, gpu.of_block[block_of(t)].rounds, gpu.launch.rounds};
}

/* Whether an access of `thread` at `moment` is over for the current thread: both have met since. */
static int is_over(int thread, const Moment *moment) {
  int t = gpu.current;
  Moment present = now();
  if (thread == t || moment->launch != present.launch) return 1;
  if (block_of(thread) != block_of(t)) return 0;
  if (moment->block != present.block) return 1;
  return warp_of(thread) == warp_of(t) && moment->warp != present.warp;
}

static Record *record_of(uintptr_t byte) {
  size_t at = (byte / TOGETHER * 0x9E3779B97F4A7C15ull >> 50) * TOGETHER + byte % TOGETHER;
  while (gpu.records[at].byte && gpu.records[at].byte != byte) at = (at + TOGETHER) % RECORDS;
  Record *found = &gpu.records[at];
  if (!found->byte) {
    if (++gpu.used > RECORDS / 4 * 3) {
      fail("too many bytes to watch", (long)gpu.used, 0);
      leave(STOPPED);
    }
    found->byte = byte;
    found->writer = found->readers[0] = found->readers[1] = NOBODY;
  }
  return found;
}

/* line, place: where in the code the earlier and the present access stand. */
static void race(const char *what, int thread, int line, int place) {
  if (!gpu.failed)
    snprintf(gpu.report, sizeof gpu.report, "a race: %s: thread %d in line %d, thread %d in line %d", what, thread, line, gpu.current, place);
  gpu.failed = 1;
  leave(STOPPED);
}

/* A GPU refuses an address that is no multiple of what an instruction assumes. */
static void check_aligned(void *address, int32_t alignment, int32_t place) {
  if (!gpu.watches || (uintptr_t)address % alignment == 0) return;
  fail("an address between two multiples of what the code assumes: alignment, line", alignment, place);
  leave(STOPPED);
}

/* Whether the last write of a byte is over for the current thread. */
static int is_written(const Record *r) {
  return r->writer == NOBODY || (is_over(r->writer, &r->written) && !(r->several && r->written.launch == now().launch));
}

void dev_reads(void *address, int32_t bytes, int32_t alignment, int32_t place) {
  check_aligned(address, alignment, place);
  for (int i = 0; gpu.watches && i < bytes; i++) {
    Record *r = record_of((uintptr_t)address + i);
    if (!is_written(r)) race("a read of what another thread writes", r->writer, r->line, place);
    int which = r->readers[0] == NOBODY || r->readers[0] == gpu.current || is_over(r->readers[0], &r->read[0]) ? 0 : 1;
    r->readers[which] = gpu.current;
    r->read[which] = now();
    r->lines[which] = place;
  }
}

static void writes(void *address, int32_t bytes, int32_t alignment, int32_t place, int adds) {
  check_aligned(address, alignment, place);
  for (int i = 0; gpu.watches && i < bytes; i++) {
    Record *r = record_of((uintptr_t)address + i);
    int present = !is_written(r);
    if (present && !(adds && r->added)) race("two threads write", r->writer, r->line, place);
    r->several = present;
    r->added = adds;
    for (int k = 0; k < 2; k++)
      if (r->readers[k] != NOBODY && !is_over(r->readers[k], &r->read[k])) race("a write of what another thread reads", r->readers[k], r->lines[k], place);
    r->writer = gpu.current;
    r->written = now();
    r->line = place;
    r->readers[0] = r->readers[1] = NOBODY;
  }
}

void dev_writes(void *address, int32_t bytes, int32_t alignment, int32_t place) { writes(address, bytes, alignment, place, 0); }
void dev_adds(void *address, int32_t bytes, int32_t alignment, int32_t place) { writes(address, bytes, alignment, place, 1); }

static void run_step(void) {
  gpu.step(gpu.arguments[0], gpu.arguments[1], gpu.arguments[2], gpu.arguments[3]);
  int t = gpu.current;
  Barrier *all[] = {&gpu.warp[warp_of(t)], &gpu.of_block[block_of(t)], &gpu.launch};
  for (int i = 0; i < 3; i++) {
    if (all[i]->arrived) fail("a thread ends while others wait for it", t, all[i]->place);
    all[i]->live--;
  }
  gpu.thread[t].state = ENDED;
  leave(PARKED);
}

static void resume(Thread *thread) {
  if (thread->started) _longjmp(thread->here, 1);
  thread->started = 1;
  getcontext(&thread->context);
  thread->context.uc_stack.ss_sp = thread->stack;
  thread->context.uc_stack.ss_size = STACK_BYTES;
  makecontext(&thread->context, run_step, 0);
  setcontext(&thread->context);
}

static int drawn(int count) {
  gpu.seed = gpu.seed * 6364136223846793005ull + 1442695040888963407ull;
  return (int)((gpu.seed >> 33) % (uint64_t)count);
}

/* Run each thread of a warp until it waits, as often as one of them still can. Returns whether any ran. */
static int run_warp(int warp) {
  int block = warp / gpu.warps_of_block, first = block * gpu.block + warp % gpu.warps_of_block * WARP;
  int last = (block + 1) * gpu.block, end = first + WARP < last ? first + WARP : last, ran = 0;
  for (int again = 1; again && !gpu.failed;) {
    again = 0;
    for (volatile int t = first; t < end && !gpu.failed; t++) {
      if (gpu.thread[t].state != RUNS) continue;
      gpu.current = t;
      again = ran = 1;
      if (_setjmp(gpu.scheduler) == 0) resume(&gpu.thread[t]);
    }
  }
  return ran;
}

/* Shared memory has no zeros by chance, and a guard behind that of each block. */
static void make_shared(void) {
  size_t nbytes = gpu.blocks * (gpu.shared_bytes + GUARD);
  gpu.shared = malloc(nbytes);
  memset(gpu.shared, GARBAGE, nbytes);
}

static void check_shared(void) {
  for (int b = 0; b < gpu.blocks; b++)
    for (int i = 0; i < GUARD; i++)
      if (gpu.shared[b * (gpu.shared_bytes + GUARD) + gpu.shared_bytes + i] != GARBAGE)
        fail("a write behind the shared memory of a block", b, i);
}

/* Run `step` on a launch; 0, or 1 if something is wrong (`gpu_report`). watches: whether the code reports accesses. */
int gpu_run(void *step, void **arguments, int blocks, int block, size_t shared_bytes, uint64_t seed, int watches) {
  memset(&gpu, 0, sizeof gpu);
  gpu.step = (Step)step;
  memcpy(gpu.arguments, arguments, sizeof gpu.arguments);
  gpu.blocks = blocks, gpu.block = block, gpu.threads = blocks * block;
  gpu.warps_of_block = (block + WARP - 1) / WARP;
  gpu.shared_bytes = shared_bytes, gpu.seed = seed, gpu.watches = watches;
  int warps = blocks * gpu.warps_of_block, *order = malloc(warps * sizeof *order);
  gpu.thread = calloc(gpu.threads, sizeof *gpu.thread);
  gpu.warp = calloc(warps, sizeof *gpu.warp);
  gpu.of_block = calloc(blocks, sizeof *gpu.of_block);
  gpu.exchanged = calloc(2 * gpu.threads, sizeof *gpu.exchanged);
  gpu.fragments = calloc(2 * gpu.threads, 6 * sizeof *gpu.fragments);
  make_shared();
  gpu.launch.live = gpu.threads;
  if (watches) gpu.records = calloc(RECORDS, sizeof *gpu.records);
  if (stack_count < gpu.threads) {
    stacks = realloc(stacks, gpu.threads * sizeof *stacks);
    while (stack_count < gpu.threads) stacks[stack_count++] = malloc(STACK_BYTES);
  }
  for (int t = 0; t < gpu.threads; t++) {
    gpu.thread[t].stack = stacks[t];
    gpu.thread[t].block = t / block;
    gpu.thread[t].warp = t / block * gpu.warps_of_block + t % block / WARP;
    gpu.warp[warp_of(t)].live++;
    gpu.of_block[block_of(t)].live++;
  }
  for (int w = 0; w < warps; w++) order[w] = w;
  for (int left = gpu.threads; left && !gpu.failed;) {
    int ran = 0;
    for (int w = warps; w > 1; w--) {
      int other = drawn(w), held = order[w - 1];
      order[w - 1] = order[other], order[other] = held;
    }
    for (int w = 0; w < warps && !gpu.failed; w++) ran |= run_warp(order[w]);
    left = 0;
    for (int t = 0; t < gpu.threads; t++) left += gpu.thread[t].state != ENDED;
    if (left && !ran) fail("threads wait for ever for others", left, gpu.threads);
  }
  check_shared();
  free(gpu.thread), free(gpu.warp), free(gpu.of_block), free(gpu.exchanged), free(gpu.fragments), free(gpu.shared), free(gpu.records);
  free(order);
  return gpu.failed;
}
