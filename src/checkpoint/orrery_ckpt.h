/* Checkpoints of a training job from C: saved while the job goes on, complete and verified or not there at all.
 *
 *   orrery_ckpt_options o;
 *   orrery_ckpt_options_init(&o);                       defaults
 *   o.directory = "checkpoints";
 *   orrery_ckpt_open(&o, &writer);                      once a rank
 *   orrery_ckpt_save(writer, step, ORRERY_CKPT_FULL, tensors, count, NULL, 0, NULL);
 *   ...                                                 returns after one copy to memory; threads write, rank 0 commits
 *   orrery_ckpt_close(writer);
 *   orrery_ckpt_newest_good("checkpoints", 3, &reader); after a restart
 *
 *   cc -std=c99 -IPREFIX/include job.c -LPREFIX/lib -Wl,-rpath,PREFIX/lib -lorrery_ckpt
 *
 * A whole program and what is written: docs/formats/checkpoint.md.
 *
 * Functions that can fail return ORRERY_CKPT_OK (0), ORRERY_CKPT_ERROR (1) or, where said, ORRERY_CKPT_NONE (2);
 * orrery_ckpt_last_error() then has one line for this thread. A pointer that must not be NULL and is, is such an error.
 * Structs begin with their size, so that fields can be added at their ends: fill them with the _init function, which
 * sets the defaults. Nothing here throws. A writer is used by one thread at a time, but for orrery_ckpt_hurry. Text is
 * UTF-8; directories are what the system takes. */
#ifndef ORRERY_CKPT_H
#define ORRERY_CKPT_H
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define ORRERY_CKPT_API_VERSION 1
#define ORRERY_CKPT_MAX_DIMS 8

enum { ORRERY_CKPT_OK = 0, ORRERY_CKPT_ERROR = 1, ORRERY_CKPT_NONE = 2 };
/* Two kinds of checkpoints, each kept by a number of its own: say, full every hour and snapshots every five minutes. */
enum { ORRERY_CKPT_FULL = 0, ORRERY_CKPT_SNAPSHOT = 1 };
/* What save does when all buffers are still being written. WAIT: waits, wait_timeout_s at most, then as SKIP. SKIP: the
 * new one is not saved. DROP: the oldest that is not being written yet makes room; if there is none, as SKIP. */
enum { ORRERY_CKPT_WAIT = 0, ORRERY_CKPT_SKIP = 1, ORRERY_CKPT_DROP = 2 };
enum { ORRERY_CKPT_ACCEPTED = 0, ORRERY_CKPT_SKIPPED = 1 }; /* outcome of a save */
enum { ORRERY_CKPT_HOST = 0, ORRERY_CKPT_CUDA = 1 };        /* where a tensor is */
enum {
  ORRERY_CKPT_BOOL = 0,
  ORRERY_CKPT_U8,
  ORRERY_CKPT_I8,
  ORRERY_CKPT_F8_E5M2,
  ORRERY_CKPT_F8_E4M3,
  ORRERY_CKPT_I16,
  ORRERY_CKPT_U16,
  ORRERY_CKPT_F16,
  ORRERY_CKPT_BF16,
  ORRERY_CKPT_I32,
  ORRERY_CKPT_U32,
  ORRERY_CKPT_F32,
  ORRERY_CKPT_I64,
  ORRERY_CKPT_U64,
  ORRERY_CKPT_F64
};

typedef struct orrery_ckpt_writer orrery_ckpt_writer;
typedef struct orrery_ckpt_reader orrery_ckpt_reader;

/* In brackets what orrery_ckpt_options_init sets. Times are seconds from 0 to 1e9. */
typedef struct {
  size_t struct_size;
  const char* directory; /* made if absent; its parent must exist. All ranks see the same one. Relative: to where the
                             writer is opened */
  int32_t rank, world;   /* [0, 1]; world at most a million */
  /* The same text in all ranks of a run, another in every run (restart): parts of two runs are never mixed. NULL or "":
   * made up for one rank; for more, Slurm's job, step and restart number, without which open fails. */
  const char* session;
  uint32_t keep_full, keep_snapshot; /* [2, 2] newest complete ones that stay; 0: all */
  int32_t when_busy;                 /* [ORRERY_CKPT_WAIT] */
  uint32_t buffers;                  /* [2] copies of the state in host memory, 1 to 64 */
  uint64_t buffer_bytes;             /* [0] of each, made ready by open; 0: by the first save, which is then slow */
  uint64_t write_bytes_per_second;   /* [0] limit of the writing; 0: none */
  double wait_timeout_s;             /* [600] how long save waits for a buffer */
  double peer_timeout_s;             /* [600] how long rank 0 waits for the part of a rank that still runs */
  double close_timeout_s;            /* [600] how long close waits for storage before it lets go */
  int32_t pin;                       /* [1] page-lock buffers where CUDA's runtime is found */
  int32_t read_back;                 /* [1] verify by reading what was written */
  int32_t lock;                      /* [1] 0 only where the file system has no locks and no two jobs can meet */
} orrery_ckpt_options;

/* What one rank holds of a tensor: contiguous, row-major. */
typedef struct {
  const char* name;
  int32_t dtype, place;
  int32_t dims;                        /* of shape */
  int32_t split_dim;                   /* -1: not split; ranks that give the same name must then hold the same values */
  int64_t shape[ORRERY_CKPT_MAX_DIMS]; /* of this rank's piece */
  int64_t offset, whole; /* of a split tensor: where this piece begins, how long all pieces are along split_dim */
  const void* data;
} orrery_ckpt_tensor;

/* Counts since open. saves = accepted + skipped + refused; accepted ones end as written, failed or dropped. */
typedef struct {
  size_t struct_size;
  uint64_t saves, accepted, skipped, dropped;
  uint64_t written, failed;               /* this rank's part durable and verified; not writable */
  uint64_t committed, abandoned, removed; /* rank 0: complete; given up; old ones that keep_... took away */
  uint64_t bytes_copied, bytes_written;
  uint64_t blocked_ns, blocked_max_ns, blocked_last_ns; /* in save */
  uint64_t waited_ns;                                   /* of blocked_ns: for a buffer */
  uint64_t write_ns, write_last_ns;                     /* in the background */
  uint64_t buffer_growths;                              /* saves that had to get memory */
  uint64_t oldest_unwritten_ns;                         /* grows while storage is stuck */
  int64_t committed_step;                               /* rank 0: the newest; -1 none */
  int32_t pinned;
  uint64_t refused; /* saves that returned an error */
} orrery_ckpt_stats;

const char* orrery_ckpt_last_error(void); /* of this thread; valid until its next call here */

void orrery_ckpt_options_init(orrery_ckpt_options* options);
/* Locks this rank of the directory and makes buffers ready. Rank 0 removes what runs before left unfinished. */
int orrery_ckpt_open(const orrery_ckpt_options* options, orrery_ckpt_writer** out);
/* Copies the tensors and returns; they may change at once. All ranks call it in the same order, with the same step and
 * slot. `metadata`: `pairs` times key and value; those of rank 0 are kept. `outcome` may be NULL.
 * ORRERY_CKPT_ERROR counts as this rank's turn: rank 0 is told why and gives that checkpoint up. Go on to the next one
 * with all ranks; do not try again on one rank alone. */
int orrery_ckpt_save(orrery_ckpt_writer* writer, int64_t step, int32_t slot, const orrery_ckpt_tensor* tensors,
                     size_t count, const char* const* metadata, size_t pairs, int32_t* outcome);
/* This rank's turn without a part, for a caller that finds its own reason before it can call save. Returns
 * ORRERY_CKPT_ERROR with that reason. */
int orrery_ckpt_refuse(orrery_ckpt_writer* writer, int64_t step, int32_t slot, const char* why);
/* Until all that was accepted is written and, on rank 0, complete. ORRERY_CKPT_ERROR: some of it failed since the last
 * wait, or it is not done yet. */
int orrery_ckpt_wait(orrery_ckpt_writer* writer, double timeout_s);
/* The process is about to be ended: from now on save does not wait for a buffer, wait ends after `within_s` at
 * the latest, close two seconds later. May be called from a signal handler or another thread while those are under way.
 */
void orrery_ckpt_hurry(orrery_ckpt_writer* writer, double within_s);
int orrery_ckpt_get_stats(orrery_ckpt_writer* writer, orrery_ckpt_stats* stats); /* struct_size set by the caller */
/* Waits for what was accepted, then lets go of the lock. Both free the writer, also where they return an error. */
int orrery_ckpt_close(orrery_ckpt_writer* writer); /* for close_timeout_s at most */
int orrery_ckpt_close_within(orrery_ckpt_writer* writer, double timeout_s);

/* The newest checkpoint of which every byte is as it was written. `slots`: 1 full, 2 snapshots, 3 both.
 * ORRERY_CKPT_NONE: none was ever completed there (or its file system is not mounted, which looks the same: a job that
 * has saved before should not take it for a beginning). ORRERY_CKPT_ERROR: there are some, and none is good or they
 * cannot be looked at. One rank asks and tells the others the id. */
int orrery_ckpt_newest_good(const char* directory, int32_t slots, orrery_ckpt_reader** out);
int orrery_ckpt_open_id(const char* directory, const char* id, orrery_ckpt_reader** out);
/* For a job that goes back on purpose: what was committed after `id` is not loaded any more. */
int orrery_ckpt_withdraw_after(const char* directory, const char* id);
void orrery_ckpt_reader_free(orrery_ckpt_reader* reader);
/* Of a reader; texts live as long as it does. Of NULL: -1, 0 or NULL. */
int64_t orrery_ckpt_step(const orrery_ckpt_reader* reader);
int32_t orrery_ckpt_slot(const orrery_ckpt_reader* reader);
int32_t orrery_ckpt_world(const orrery_ckpt_reader* reader);
const char* orrery_ckpt_id(const orrery_ckpt_reader* reader);
size_t orrery_ckpt_rejected_count(const orrery_ckpt_reader* reader);
const char* orrery_ckpt_rejected(const orrery_ckpt_reader* reader, size_t index); /* NULL past the end; so below */
size_t orrery_ckpt_metadata_count(const orrery_ckpt_reader* reader);
const char* orrery_ckpt_metadata_key(const orrery_ckpt_reader* reader, size_t index);
const char* orrery_ckpt_metadata_value(const orrery_ckpt_reader* reader, size_t index);
size_t orrery_ckpt_tensor_count(const orrery_ckpt_reader* reader);
/* Of the whole tensor; data is NULL, name lives as long as the reader. */
int orrery_ckpt_tensor_info(const orrery_ckpt_reader* reader, size_t index, orrery_ckpt_tensor* out);
/* Reads and checks the shards whose number modulo `parts` is `part`: ranks can share the work. */
int orrery_ckpt_verify(const orrery_ckpt_reader* reader, int32_t part, int32_t parts);
/* The box [begin, begin + shape) of the whole tensor, row-major. `bytes`: room at `out`; an error if the box does not
 * fit exactly. */
int orrery_ckpt_read(const orrery_ckpt_reader* reader, const char* name, const int64_t* begin, const int64_t* shape,
                     int32_t dims, void* out, uint64_t bytes);

#ifdef __cplusplus
}
#endif
#endif
