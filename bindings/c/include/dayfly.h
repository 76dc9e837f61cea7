/* Dayfly for C: lease workers, invoke functions on them, and exchange messages between ranks. Generated
 * from bindings/c/src by `make generate`.
 *
 * Functions return a status; after an error dfly_last_error_message() returns the message of this thread.
 * All pointer arguments are required unless a description states that they may be NULL. Texts are UTF-8 and
 * end with NUL. A missing or malformed argument gives DFLY_INVALID_REQUEST, a fault of the library
 * DFLY_INTERNAL.
 *
 * The caller owns every handle that a function returns, and frees it with the function named there. On an
 * error the handle is NULL. Handles may be freed in any order: a channel keeps its lease open, a lease its
 * client. Clients, leases, pools and groups are thread-safe. Channels, buffers, outputs and requests may
 * be used by one thread at a time. No thread may use a handle that another thread frees. In a forked child
 * every handle of the parent returns DFLY_FORKED; the child may connect again. */
#ifndef DAYFLY_H
#define DAYFLY_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

// Hot if the node has cores to reserve, else warm. `dfly_lease_is_hot` returns which.
#define DFLY_MODE_AUTO 0

// Each worker owns its cores and polls.
#define DFLY_MODE_HOT 1

// Workers sleep until woken, and share cores.
#define DFLY_MODE_WARM 2

// The fastest available transport: shared memory on the same host, TCP over the loopback interface, else TLS.
#define DFLY_TRANSPORT_BEST 0

// Shared memory, on the same host.
#define DFLY_TRANSPORT_SHM 1

// TCP without encryption, over the loopback interface or where the site trusts its network.
#define DFLY_TRANSPORT_TCP 2

// TCP with TLS 1.3.
#define DFLY_TRANSPORT_TLS 3

// Remote memory access with libfabric, if the node offers it.
#define DFLY_TRANSPORT_LIBFABRIC 4

// `uint32_t f(void *in, uint32_t size, void *out)`, which returns the number of bytes written.
#define DFLY_FORM_PLAIN 0

// `int32_t f(dfly_context *, const void *in, size_t in_len, void *out, size_t out_capacity, size_t *out_len)`.
#define DFLY_FORM_CHECKED 1

// The site's policy chooses the sandbox.
#define DFLY_SANDBOX_SITE 0

// Processes of the node's own user, for trusted code.
#define DFLY_SANDBOX_PROCESS 1

// No privileges, no network, no files except programs and libraries, bounded memory: for untrusted code.
#define DFLY_SANDBOX_ISOLATED 2

// As DFLY_SANDBOX_ISOLATED, with an image in place of the host's programs and libraries.
#define DFLY_SANDBOX_CONTAINER 3

// No limit, for a time in milliseconds or microseconds.
#define DFLY_FOR_EVER 4294967295

// A term stays as it is, in `dfly_renew_options`.
#define DFLY_UNCHANGED 4294967294

// Standard output.
#define DFLY_STREAM_OUT 1

// Standard error.
#define DFLY_STREAM_ERR 2

// Any worker, in `dfly_call_options`.
#define DFLY_ANY_WORKER 4294967295

// There are no workers.
#define DFLY_SPLIT_NO_WORKERS 0

// Too little is known; a few calls are sent to learn.
#define DFLY_SPLIT_UNKNOWN 1

// No call would return before the local work is done.
#define DFLY_SPLIT_CANNOT_WIN 2

// As many calls are sent as return before the local work is done.
#define DFLY_SPLIT_DIVIDED 3

// Any rank: as the source of a message, or any free rank in `dfly_group_options`.
#define DFLY_ANY_RANK 4294967295

// No rank: a message to it is discarded, and a receive from it completes at once without data.
#define DFLY_NO_RANK 4294967294

// No part, in `dfly_group_split`.
#define DFLY_NO_COLOR 4294967295

// Untyped bytes.
#define DFLY_BYTES 0

// `int8_t`.
#define DFLY_I8 1

// `int16_t`.
#define DFLY_I16 2

// `int32_t`.
#define DFLY_I32 3

// `int64_t`.
#define DFLY_I64 4

// `uint8_t`.
#define DFLY_U8 5

// `uint16_t`.
#define DFLY_U16 6

// `uint32_t`.
#define DFLY_U32 7

// `uint64_t`.
#define DFLY_U64 8

// `float`.
#define DFLY_F32 9

// `double`.
#define DFLY_F64 10

// `bool`: one byte, false where it is zero.
#define DFLY_BOOL 11

// Two `float`: real and imaginary part.
#define DFLY_COMPLEX64 12

// Two `double`: real and imaginary part.
#define DFLY_COMPLEX128 13

// A `double` value and its `int64_t` index, for DFLY_MIN_AT and DFLY_MAX_AT.
#define DFLY_F64_AT 14

// As DFLY_F64_AT, with an `int64_t` value.
#define DFLY_I64_AT 15

// `double`, `int32_t` and four bytes of padding. This type and the next four have the layout of MPI's value-index
// pairs.
#define DFLY_F64_AT32 16

// `int64_t`, `int32_t` and four bytes of padding.
#define DFLY_I64_AT32 17

// `float` and `int32_t`.
#define DFLY_F32_AT32 18

// Two `int32_t`.
#define DFLY_I32_AT32 19

// `int16_t`, two bytes of padding, and `int32_t`.
#define DFLY_I16_AT32 20

// Sum. Integers wrap around.
#define DFLY_SUM 1

// Product. Integers wrap around.
#define DFLY_PRODUCT 2

// Minimum.
#define DFLY_MIN 3

// Maximum.
#define DFLY_MAX 4

// True if all elements are true (not zero).
#define DFLY_LOGICAL_AND 5

// True if any element is true.
#define DFLY_LOGICAL_OR 6

// True if an odd number of elements is true.
#define DFLY_LOGICAL_XOR 7

// Bitwise and.
#define DFLY_BIT_AND 8

// Bitwise or.
#define DFLY_BIT_OR 9

// Bitwise exclusive or.
#define DFLY_BIT_XOR 10

// Minimum and its lowest index.
#define DFLY_MIN_AT 11

// Maximum and its lowest index.
#define DFLY_MAX_AT 12

// Matches any tag, in a receive.
#define DFLY_ANY_TAG 4294967295

// Result of a function. Numbers and names never change their meaning.
enum dfly_status
#if defined(__cplusplus) || __STDC_VERSION__ >= 202311L
  : int32_t
#endif // defined(__cplusplus) || __STDC_VERSION__ >= 202311L
 {
    // Success.
    DFLY_OK = 0,
    // The request is malformed or contradicts itself, or an argument of this library is invalid.
    DFLY_INVALID_REQUEST = 1,
    // The lease, node, worker, call, file or function does not exist.
    DFLY_NOT_FOUND = 2,
    // The token, its signature, its holder's signature or the bearer is not accepted.
    DFLY_UNAUTHORIZED = 3,
    // The lease or its token has expired.
    DFLY_LEASE_EXPIRED = 4,
    // The lease was released by its holder or revoked by an operator.
    DFLY_LEASE_ENDED = 5,
    // No node has the requested cores, memory or workers free.
    DFLY_NO_CAPACITY = 6,
    // The request exceeds the site's policy or the capacity of every node.
    DFLY_TOO_LARGE = 7,
    // Client and server use different wire versions.
    DFLY_VERSION_MISMATCH = 8,
    // Client and worker run different Python or cloudpickle versions.
    DFLY_PYTHON_MISMATCH = 9,
    // The executor, or an embedded manager, could not be started.
    DFLY_EXECUTOR_FAILED = 10,
    // Another channel is already open to this worker.
    DFLY_WORKER_BUSY = 11,
    // The hello was seen before, or its clock is too far from the node's.
    DFLY_REPLAYED = 12,
    // The transport is not available on this host or not allowed by the site's policy.
    DFLY_TRANSPORT_REFUSED = 13,
    // The code cannot be loaded, or does not export the symbol.
    DFLY_LOAD_FAILED = 14,
    // The SHA-256 hash of the code's bytes differs from the announced hash.
    DFLY_HASH_MISMATCH = 15,
    // The function reported an error. The message is the function's own text.
    DFLY_FUNCTION_ERROR = 16,
    // The function's output does not fit into the memory provided for it.
    DFLY_OUTPUT_OVERFLOW = 17,
    // The worker died during the call. The call may have been executed.
    DFLY_MAYBE_EXECUTED = 18,
    // The worker died before the call began. The call was not executed.
    DFLY_NOT_EXECUTED = 19,
    // The call exceeded its deadline and was stopped.
    DFLY_DEADLINE_EXCEEDED = 20,
    // The worker cannot accept the call now, or the channel's ring is full.
    DFLY_REJECTED = 21,
    // The state that the call depends on was lost with its worker.
    DFLY_STATE_LOST = 22,
    // The manager or node cannot be reached.
    DFLY_UNREACHABLE = 23,
    // The caller's own time limit for a wait has passed.
    DFLY_TIMED_OUT = 24,
    // The store could not write: the disk is full, or the store is corrupt.
    DFLY_STORE_FAILED = 25,
    // The address is already in use.
    DFLY_ADDRESS_IN_USE = 26,
    // Another manager now owns the node.
    DFLY_STALE_EPOCH = 27,
    // Cancelled by the caller.
    DFLY_CANCELLED = 28,
    // A payload is larger than the channel or the lease allows.
    DFLY_PAYLOAD_TOO_LARGE = 29,
    // The peer violated the protocol.
    DFLY_PROTOCOL_VIOLATION = 30,
    // Internal error of Dayfly.
    DFLY_INTERNAL = 31,
    // The function index was not resolved on this channel.
    DFLY_UNKNOWN_FUNCTION = 32,
    // The memory for inputs or outputs is exhausted.
    DFLY_OUT_OF_MEMORY = 33,
    // The handle was inherited through a fork and belongs to the parent process.
    DFLY_FORKED = 34,
    // The tenant has no budget or quota left for the request, or is suspended.
    DFLY_QUOTA_EXCEEDED = 35,
    // The token is valid but does not permit the operation.
    DFLY_FORBIDDEN = 36,
    // A rank of the group died or stopped responding.
    DFLY_RANK_LOST = 37,
    // The ranks of a group called operations that do not match.
    DFLY_MISMATCH = 38,
    // A message is longer than the receiver's buffer.
    DFLY_TRUNCATED = 39,
    // A dependency of the task did not succeed.
    DFLY_DEPENDENCY_FAILED = 40,
    // The node is still building the environment that the workers need.
    DFLY_ENVIRONMENT_BUILDING = 41,
    // The environment that the workers need cannot be built.
    DFLY_ENVIRONMENT_FAILED = 42,
    // The call succeeded, but its result cannot be decoded in the process that fetched it.
    DFLY_RESULT_UNREADABLE = 43,
    // Other users can access the state directory, and the daemon may not change its permissions.
    DFLY_STATE_EXPOSED = 44,
    // The store lacks data that it held before.
    DFLY_STORE_LOST = 45,
    // The lease requires isolation, and the node offers none.
    DFLY_ISOLATION_UNAVAILABLE = 46,
    // Another tenant may have produced the result, and decoding it would run code.
    DFLY_UNTRUSTED = 47,
    // Several ids match the abbreviated id.
    DFLY_AMBIGUOUS = 48,
    // The call was ended because it held borrowed memory that its owner needed; it may have been executed.
    DFLY_MEMORY_RETURNED = 49,
    // A query needs more memory than a rank has, and its node has no directory to spill into.
    DFLY_SPILL_REFUSED = 50,
    // The directory into which a query spills is full, or the rank has spilled as much as it may.
    DFLY_SPILL_FULL = 51,
    // A file that a query was reading was changed or removed after the query was planned.
    DFLY_INPUT_CHANGED = 52,
};
#ifndef __cplusplus
#if __STDC_VERSION__ >= 202311L
typedef enum dfly_status dfly_status;
#else
typedef int32_t dfly_status;
#endif // __STDC_VERSION__ >= 202311L
#endif // __cplusplus

// When a program may repeat a request that failed.
enum dfly_retry
#if defined(__cplusplus) || __STDC_VERSION__ >= 202311L
  : int32_t
#endif // defined(__cplusplus) || __STDC_VERSION__ >= 202311L
 {
    // The request itself must change.
    DFLY_RETRY_NEVER = 0,
    // The same request may succeed later.
    DFLY_RETRY_LATER = 1,
    // The same request may succeed at once on another worker. Nothing was executed.
    DFLY_RETRY_ELSEWHERE = 2,
    // The call may have been executed. Repeat it only if that does no harm.
    DFLY_RETRY_IF_IDEMPOTENT = 3,
};
#ifndef __cplusplus
#if __STDC_VERSION__ >= 202311L
typedef enum dfly_retry dfly_retry;
#else
typedef int32_t dfly_retry;
#endif // __STDC_VERSION__ >= 202311L
#endif // __cplusplus

// Memory of a channel or pool for inputs and outputs. The program may read and write its bytes, except while a call
// uses them. It may outlive its channel. One thread at a time may use a buffer.
typedef struct dfly_buffer dfly_buffer;

// A channel to one worker. One thread at a time may use it.
typedef struct dfly_channel dfly_channel;

// A client of a manager, or of one node. Thread-safe.
typedef struct dfly_client dfly_client;

// The right to use some workers of a lease, for the holder of this handle or of its text.
typedef struct dfly_delegation dfly_delegation;

// Workers on many nodes behind one queue. Thread-safe. Calls move from nodes that are lost or taken back to others, if
// they have not begun or are idempotent.
typedef struct dfly_fleet dfly_fleet;

// A group of ranks that exchange messages, as one of them sees it. Thread-safe: threads take turns. Counts are numbers
// of elements of a datatype (DFLY_F64 and so on).
//
// All ranks must call the collectives, `dfly_group_barrier` to `dfly_group_exscan`, in the same order. If the calls do
// not match, they fail with DFLY_MISMATCH, and the message names the calls. If `request` is NULL, a collective returns
// when this rank's part is complete. Else it continues in the background and writes a request to `request`; all memory
// arguments except counts and displacements must stay valid until that request completes. Input and output may
// overlap: the input is then copied first. Memory arguments may be NULL if they have no elements.
//
// An operation that needs a lost rank fails with DFLY_RANK_LOST, and the message names the rank. An operation that
// exceeds the group's deadline (default: one hour) fails with DFLY_TIMED_OUT.
typedef struct dfly_group dfly_group;

// The right to use some workers. Thread-safe. The lease is released when the handle and all its channels and pools are
// freed.
typedef struct dfly_lease dfly_lease;

// Learns how long calls take in the program and on workers, and divides loops so that the program does not wait.
// Thread-safe.
typedef struct dfly_offload dfly_offload;

// The output of a call. One thread at a time may use it. It may outlive its pool.
typedef struct dfly_output dfly_output;

// Channels to all workers of a lease. Thread-safe. A thread that waits progresses the calls of all threads.
typedef struct dfly_pool dfly_pool;

// Reader of the output of a lease's workers, from the beginning of the lease. It does not keep the lease alive, and
// can read for one minute after the lease has ended. One thread at a time may use it.
typedef struct dfly_printed dfly_printed;

// A group operation in the background. It progresses whenever this process waits for any operation of its group. One
// thread at a time may use it. It may outlive its group.
typedef struct dfly_request dfly_request;

// Options of a lease. Initialise with `dfly_lease_options_init`, then set fields.
typedef struct dfly_lease_options {
    // Set by `dfly_lease_options_init`.
    size_t size;
    // Number of workers. Default: 1.
    uint32_t workers;
    // Whole cores of each worker. Default: 1.
    uint32_t cores_per_worker;
    // GPUs of each worker, set in its CUDA_VISIBLE_DEVICES. Default: 0.
    uint32_t gpus_per_worker;
    // Thousandths of a core of each worker beside `cores_per_worker`: 0 and 500 are half a core. Default: 0. Workers with
    // a part of a core are warm.
    uint32_t milli_cores_per_worker;
    // Memory of the whole lease, in bytes. Default: 0, the node's usual share.
    uint64_t memory_bytes;
    // Duration from the first use, in milliseconds. Default: one hour.
    uint64_t duration_ms;
    // How long the lease outlives its last channel, in milliseconds; 0 for its whole duration. Default: 10 seconds.
    uint64_t idle_release_ms;
    // DFLY_MODE_AUTO, DFLY_MODE_HOT or DFLY_MODE_WARM.
    uint32_t mode;
    // How long a hot worker polls after a call before it sleeps, in milliseconds. Default: DFLY_FOR_EVER.
    uint32_t hot_for_ms;
    // DFLY_SANDBOX_SITE, DFLY_SANDBOX_PROCESS, DFLY_SANDBOX_ISOLATED or DFLY_SANDBOX_CONTAINER.
    uint32_t sandbox;
    // How long a warm worker polls after a call before it sleeps, in microseconds; at most 10,000. Default: 0.
    uint32_t poll_for_us;
    // Name or path of a container image that the site allows. NULL for the site's first, or for no container.
    const char *image;
} dfly_lease_options;

// Identity of code: the SHA-256 hash of its bytes.
typedef struct dfly_code {
    // SHA-256 hash.
    uint8_t hash[32];
} dfly_code;

// Terms of a renewal. Initialise with `dfly_renew_options_init`, then set fields.
typedef struct dfly_renew_options {
    // Set by `dfly_renew_options_init`.
    size_t size;
    // Duration from now, in milliseconds. Default: one hour.
    uint64_t duration_ms;
    // Number of workers. Memory follows in proportion. Default: DFLY_UNCHANGED.
    uint32_t workers;
    // The fewest workers to accept if there is no room for `workers`. Default: DFLY_UNCHANGED, all or an error.
    uint32_t min_workers;
    // DFLY_MODE_AUTO, DFLY_MODE_HOT or DFLY_MODE_WARM. Default: DFLY_UNCHANGED.
    uint32_t mode;
    // How long a hot worker polls after a call before it sleeps, in milliseconds, or DFLY_FOR_EVER. Default:
    // DFLY_UNCHANGED.
    uint32_t hot_for_ms;
    // How long a warm worker polls after a call before it sleeps, in microseconds. Default: DFLY_UNCHANGED.
    uint32_t poll_for_us;
    // Must be 0.
    uint32_t reserved;
} dfly_renew_options;

// Limits of the leases under an allowance. Initialise with `dfly_allowance_options_init`, then set fields.
typedef struct dfly_allowance_options {
    // Set by `dfly_allowance_options_init`.
    size_t size;
    // Memory of all workers together, in bytes. Default: 0, the nodes' usual share. Required if the tenant has a memory
    // quota.
    uint64_t memory_bytes;
    // Maximum duration of a lease, in milliseconds. Default: one hour.
    uint64_t duration_ms;
    // Maximum number of workers of all concurrent leases together. Default: 1.
    uint32_t workers;
    // Maximum number of whole cores of all workers together. Default: 0, one core per worker.
    uint32_t cores;
    // Maximum number of workers on one node. Default: 0, twice an even share.
    uint32_t workers_per_node;
    // Sandbox of all leases under the allowance: DFLY_SANDBOX_SITE, _PROCESS, _ISOLATED or _CONTAINER.
    uint32_t sandbox;
} dfly_allowance_options;

// Options of a channel. Initialise with `dfly_channel_options_init`, then set fields.
typedef struct dfly_channel_options {
    // Set by `dfly_channel_options_init`.
    size_t size;
    // DFLY_TRANSPORT_BEST, _SHM, _TCP, _TLS or _LIBFABRIC.
    uint32_t transport;
    // Number of slots of each ring, a power of two. It limits the outstanding calls.
    uint32_t slots;
    // Size of a slot in bytes, a multiple of 128. Larger payloads use bulk memory.
    uint32_t stride_bytes;
    // How long a wait polls before it sleeps, in microseconds. DFLY_FOR_EVER means that it never sleeps, which spares
    // the worker a memory fence.
    uint32_t spin_us;
    // Address space for bulk payloads in each direction, in bytes, a multiple of 4096.
    uint64_t bulk_bytes;
    // For DFLY_TRANSPORT_LIBFABRIC: a provider, or a provider and a domain such as `verbs/mlx5_0`. NULL for the first
    // that the node offers.
    const char *fabric;
} dfly_channel_options;

// Completion of a submitted call.
typedef struct dfly_completion {
    // Number of the call, from `dfly_channel_submit`.
    uint32_t sequence;
    // Status of the call.
    dfly_status status;
    // Output of the call, or the text of its error. Valid until the next function of this channel.
    const void *output;
    // Length of the output in bytes.
    size_t length;
} dfly_completion;

// Options of a pool. Initialise with `dfly_pool_options_init`, then set fields.
typedef struct dfly_pool_options {
    // Set by `dfly_pool_options_init`.
    size_t size;
    // Options of the pool's channels.
    struct dfly_channel_options channel;
    // How often a call is retried on another worker, if it was not executed or is idempotent. Default: 3.
    uint32_t retries;
    // Maximum number of outstanding calls per worker. Default: 0, derived from measured times.
    uint32_t depth;
} dfly_pool_options;

// Options of a call. Initialise with `dfly_call_options_init`, then set fields.
typedef struct dfly_call_options {
    // Set by `dfly_call_options_init`.
    size_t size;
    // Limit of the execution time in milliseconds, after which the worker is stopped. Default: 0, no limit.
    uint32_t deadline_ms;
    // Not 0 if running the call twice does no harm; it is then retried if its worker dies during the call. Default: 0.
    uint32_t idempotent;
    // The only worker that may run the call. Default: DFLY_ANY_WORKER.
    uint32_t worker;
    // The incarnation of that worker whose state the call needs, from `dfly_pool_incarnation`. If the worker has been
    // replaced, the call is not executed and ends with DFLY_STATE_LOST. Default: 0, any.
    uint32_t incarnation;
    // Bytes to reserve for the output. A checked function receives the number as its capacity. Default: 0, the worker
    // chooses.
    size_t room;
} dfly_call_options;

// Called when a call ends, with its status, the text of its error (or ""), and its output. All are valid during the
// callback only. It runs in the thread that called `dfly_pool_drive` or `dfly_pool_free`. It may use the pool but must
// not free it, and must not throw.
typedef void (*dfly_callback)(void *user, dfly_status status, const char *message, const void *output, size_t length);

// Options of a fleet. Initialise with `dfly_fleet_options_init`, then set fields.
typedef struct dfly_fleet_options {
    // Set by `dfly_fleet_options_init`.
    size_t size;
    // Terms of each lease. Its `workers` is the maximum of one lease, by default 4, and its `memory_bytes` is for that
    // many.
    struct dfly_lease_options lease;
    // Options of the fleet's pool.
    struct dfly_pool_options pool;
    // Workers that the fleet holds also without calls. Default: 0.
    uint32_t min;
    // Maximum number of workers. Default: 16.
    uint32_t max;
    // How long calls must have waited before the fleet grows, in milliseconds. Default: 10.
    uint64_t patience_ms;
    // How long the workers of a lease must have been idle before the fleet gives it back, in milliseconds. Default: 10
    // seconds.
    uint64_t idle_ms;
    // How long calls wait while the fleet cannot lease any worker, in milliseconds. Then they end with the reason.
    // Default: one minute.
    uint64_t wait_ms;
} dfly_fleet_options;

// How a loop is divided. `local` and `remote` add up to the number of calls.
typedef struct dfly_split {
    // Calls that the program computes.
    uint64_t local;
    // Calls for the workers.
    uint64_t remote;
    // How many of the remote calls are sent to learn. The predictions leave them out.
    uint64_t probes;
    // Predicted time of the local work, in seconds; 0 if it is unknown.
    double local_seconds;
    // Predicted time until the last remote call has returned, in seconds.
    double remote_seconds;
    // DFLY_SPLIT_NO_WORKERS, _UNKNOWN, _CANNOT_WIN or _DIVIDED.
    uint32_t reason;
} dfly_split;

// What is known of the calls of a function with one size, in seconds; below 0 if it is unknown.
typedef struct dfly_offload_times {
    // Median time in the program.
    double local;
    // Time of 95 % of the calls in the program.
    double local_p95;
    // Median time on the worker.
    double remote;
    // Time of 95 % of the calls on the worker.
    double remote_p95;
    // `L` of LogP: latency of a small message in one direction.
    double latency;
    // `o`: work of the program to send or to receive a message.
    double overhead;
    // `g`: least time between two calls.
    double gap;
    // `G`: time of a byte.
    double per_byte;
} dfly_offload_times;

// How a process that `dayfly run` did not start finds its group. Initialise with `dfly_group_options_init`, then set
// `rendezvous`, `name`, `secret` and `ranks`. The other fields have defaults.
typedef struct dfly_group_options {
    // Set by `dfly_group_options_init`.
    size_t size;
    // Address of the rendezvous, `host:port`: a manager's, or one that `dayfly rendezvous` started.
    const char *rendezvous;
    // Public key of the rendezvous in hexadecimal, as `dayfly rendezvous` prints it. If NULL, the rendezvous is not
    // authenticated, and an impostor can keep the ranks apart.
    const char *key;
    // Name of the group.
    const char *name;
    // Run of the group: ranks of different runs do not meet. NULL for none.
    const char *run;
    // Shared secret of the ranks: at least 16 bytes, in hexadecimal.
    const char *secret;
    // Number of ranks of the group.
    uint32_t ranks;
    // This process's rank, counted from 0; DFLY_ANY_RANK for any free one.
    uint32_t rank;
    // Time limit in seconds until all ranks have joined and are connected.
    uint32_t patience_s;
    // Time limit of one operation, in seconds.
    uint32_t deadline_s;
    // How long a waiting rank polls before it sleeps, in microseconds. DFLY_FOR_EVER means that it never sleeps, or,
    // if it waits for a store, that it does not poll.
    uint32_t spin_us;
    // 1 if the network between the hosts is trusted, so that messages are not encrypted; else 0.
    uint32_t trust_fabric;
    // URL of a store for ranks that have no direct connection: `s3://bucket/prefix`, `redis://host:port`, `rediss://`
    // or `file:///directory`. NULL for none. It must be equal on all ranks.
    const char *store;
    // `direct`, or `stored` for ranks that exchange messages only through the store. NULL for `direct`. It must be
    // equal on all ranks.
    const char *channel;
    // libfabric provider, such as `verbs`, for ranks on different hosts that both have it. Requires `trust_fabric`.
    // NULL for none. It must be equal on all ranks.
    const char *fabric;
    // 1 to connect two ranks when one first needs the other; 0 to connect all ranks at the start. It must be equal on
    // all ranks.
    uint32_t lazy_connect;
} dfly_group_options;

// Reduction operation defined by the program: combines `count` elements of `left` and `right` into `right` (`right =
// left op right`). It runs in the thread of this process that waits for the group, possibly on a part of a buffer at a
// time. It must not throw, and must not use the group.
typedef void (*dfly_combine)(void *user, const void *left, void *right, size_t count, uint32_t datatype);

// Envelope of a message that was received or probed.
typedef struct dfly_message {
    // Rank that sent the message.
    uint32_t source;
    // Tag of the message.
    uint32_t tag;
    // Length in bytes.
    size_t length;
} dfly_message;

#ifdef __cplusplus
extern "C" {
#endif // __cplusplus

// Returns the message of this thread's last error: what happened, and often what to do. Never NULL. The text is valid
// until the next error of this thread. A successful call does not change it.
const char *dfly_last_error_message(void);

// Returns the status of this thread's last error; DFLY_OK before the first error.
dfly_status dfly_last_error(void);

// Returns the name of a status, such as `output_overflow`, as listed in docs/errors.md. Never NULL. The text is
// static.
const char *dfly_error_name(int32_t status);

// Returns one sentence on how to correct an error. Never NULL. The text is static.
const char *dfly_error_remedy(int32_t status);

// Returns whether and where the same request may be repeated after an error.
dfly_retry dfly_error_retry(int32_t status);

// Returns the version of this library, such as `1.2.3`. Never NULL. The text is static.
const char *dfly_version(void);

// Connects to the manager that `path` names: a connection file or a state directory. If `path` is NULL, connects to
// the manager that the environment variable DAYFLY_MANAGER names, else to the one that this user runs, else starts an
// embedded manager. An embedded manager ends with this process, or when the client and all its leases, channels and
// pools are freed. `client` receives the new client; free it with `dfly_client_free`. Errors: DFLY_UNREACHABLE if the
// manager does not respond, DFLY_EXECUTOR_FAILED if no embedded manager can be started.
dfly_status dfly_client_connect(const char *path, struct dfly_client **client);

// Starts an embedded manager and node, regardless of the configuration. `binary` is the path of the program `dayfly`.
// If it is NULL, the library uses the environment variable DAYFLY_BIN, else the program on the PATH, else the one
// beside this library. `client` receives the new client; free it with `dfly_client_free`. Errors:
// DFLY_EXECUTOR_FAILED.
dfly_status dfly_client_embedded(const char *binary, struct dfly_client **client);

// Makes a client that leases from one node without a manager. `allowance` is the path of the file `allowance.json`
// that the node wrote. `client` receives the new client; free it with `dfly_client_free`.
dfly_status dfly_client_node(const char *allowance, struct dfly_client **client);

// Returns a readable description of what the client is connected to. The text is valid as long as the client. Returns
// "" if `client` is NULL.
const char *dfly_client_describe(const struct dfly_client *client);

// Frees a client. Its leases, channels and pools remain usable. NULL is a no-op.
void dfly_client_free(struct dfly_client *client);

// Sets every option to its default. `options` must not be NULL.
dfly_status dfly_lease_options_init(struct dfly_lease_options *options);

// Leases workers. `options` may be NULL for the defaults: one worker for one hour. `lease` receives the lease; free it
// with `dfly_lease_free`. Errors: DFLY_NO_CAPACITY, DFLY_TOO_LARGE, DFLY_QUOTA_EXCEEDED, DFLY_UNREACHABLE, and
// DFLY_ISOLATION_UNAVAILABLE for a sandbox that the node does not offer.
dfly_status dfly_lease_open(const struct dfly_client *client,
                            const struct dfly_lease_options *options,
                            struct dfly_lease **lease);

// Sends the shared library at `path` to the node, unless the node already has it. `code` receives its identity.
dfly_status dfly_lease_load_library(const struct dfly_lease *lease, const char *path, struct dfly_code *code);

// As `dfly_lease_load_library`, for `length` bytes in memory.
dfly_status dfly_lease_load_bytes(const struct dfly_lease *lease,
                                  const void *data,
                                  size_t length,
                                  struct dfly_code *code);

// Sets the lease's remaining duration, in milliseconds from now. Errors: DFLY_LEASE_EXPIRED or DFLY_LEASE_ENDED if it
// is over.
dfly_status dfly_lease_renew(const struct dfly_lease *lease, uint64_t duration_ms);

// Releases the workers now. Closes all channels, and stops running calls.
dfly_status dfly_lease_release(const struct dfly_lease *lease);

// Returns the number of workers; 0 if `lease` is NULL.
uint32_t dfly_lease_workers(const struct dfly_lease *lease);

// Returns whether the workers poll on cores of their own; false if `lease` is NULL.
bool dfly_lease_is_hot(const struct dfly_lease *lease);

// Returns the default transport for channels of this lease.
uint32_t dfly_lease_transport(const struct dfly_lease *lease);

// Frees the handle. The lease is released when its channels and pools are freed too. NULL is a no-op.
void dfly_lease_free(struct dfly_lease *lease);

// Sets every option to its default. `options` must not be NULL.
dfly_status dfly_renew_options_init(struct dfly_renew_options *options);

// Renews a lease and changes its terms. `options` may be NULL for the defaults. Pools over the lease use its present
// workers afterwards: this returns when added workers serve. Idle workers are given back first. Errors:
// DFLY_NO_CAPACITY, DFLY_TOO_LARGE, DFLY_QUOTA_EXCEEDED, DFLY_INVALID_REQUEST for a change that the lease cannot have,
// and DFLY_LEASE_EXPIRED or DFLY_LEASE_ENDED if it is over. The lease then stays as it is.
dfly_status dfly_lease_renew_with(const struct dfly_lease *lease, const struct dfly_renew_options *options);

// Opens the output of a lease's workers. Their node keeps the last 256 KiB. `printed` receives the reader; free it
// with `dfly_printed_free`.
dfly_status dfly_printed_open(const struct dfly_lease *lease, struct dfly_printed **printed);

// Reads the next piece of one stream: writes up to `capacity` bytes to `into` and their number to `length`. `stream`
// receives DFLY_STREAM_OUT or DFLY_STREAM_ERR and may be NULL. Pieces end at arbitrary bytes. If there is no output,
// waits up to `wait_ms` milliseconds, and at most a few seconds; then `length` is 0. Errors: DFLY_INVALID_REQUEST if
// `capacity` is 0, DFLY_LEASE_ENDED or DFLY_LEASE_EXPIRED if the lease ended more than a minute ago.
dfly_status dfly_printed_read(struct dfly_printed *printed,
                              uint64_t wait_ms,
                              void *into,
                              size_t capacity,
                              size_t *length,
                              uint32_t *stream);

// Returns the number of bytes that the node discarded before they were read; 0 if `printed` is NULL.
uint64_t dfly_printed_missed(const struct dfly_printed *printed);

// Returns whether the lease has ended and all output was read; false if `printed` is NULL.
bool dfly_printed_is_over(const struct dfly_printed *printed);

// Frees a reader. NULL is a no-op.
void dfly_printed_free(struct dfly_printed *printed);

// Sets every option to its default. `options` must not be NULL.
dfly_status dfly_allowance_options_init(struct dfly_allowance_options *options);

// Makes a client that leases directly from nodes under an allowance of `client`'s manager. The nodes report the leases
// to the manager afterwards. Use it for many short leases, and to lease while the manager is unavailable. `options`
// may be NULL for the defaults: one worker at a time. `direct` receives the new client; free it with
// `dfly_client_free`. The allowance is returned when that client and its leases, channels and pools are freed.
dfly_status dfly_client_allowance(const struct dfly_client *client,
                                  const struct dfly_allowance_options *options,
                                  struct dfly_client **direct);

// Allocates a buffer of `length` bytes in the memory of a channel, aligned to 128 bytes. `buffer` receives it; free it
// with `dfly_buffer_free`. Errors: DFLY_OUT_OF_MEMORY if the channel's memory is exhausted.
dfly_status dfly_buffer_alloc(struct dfly_channel *channel, size_t length, struct dfly_buffer **buffer);

// Returns the address of a buffer's first byte; NULL if `buffer` is NULL. The address is valid and constant until the
// buffer is freed or given away to `dfly_channel_submit_buffer` or `dfly_pool_submit_buffer`.
void *dfly_buffer_data(const struct dfly_buffer *buffer);

// Returns the length of a buffer in bytes; 0 if `buffer` is NULL.
size_t dfly_buffer_length(const struct dfly_buffer *buffer);

// Returns the capacity of a buffer in bytes; 0 if `buffer` is NULL.
size_t dfly_buffer_capacity(const struct dfly_buffer *buffer);

// Changes the length of a buffer, in bytes, up to its capacity. Errors: DFLY_INVALID_REQUEST beyond the capacity, or
// while a call uses the buffer.
dfly_status dfly_buffer_resize(struct dfly_buffer *buffer, size_t length);

// Frees a buffer. NULL is a no-op.
void dfly_buffer_free(struct dfly_buffer *buffer);

// Sets every option to its default. `options` must not be NULL.
dfly_status dfly_channel_options_init(struct dfly_channel_options *options);

// Opens a channel to worker number `worker`, counted from 0. `options` may be NULL for the defaults. `channel`
// receives the channel; free it with `dfly_channel_free`. Errors: DFLY_WORKER_BUSY if another channel to the worker is
// open, DFLY_TRANSPORT_REFUSED.
dfly_status dfly_channel_open(const struct dfly_lease *lease,
                              uint32_t worker,
                              const struct dfly_channel_options *options,
                              struct dfly_channel **channel);

// Resolves a function in code that the lease has loaded. `form` is DFLY_FORM_PLAIN or DFLY_FORM_CHECKED. `index`
// receives the function's index, for calls on this channel. No call may be outstanding. Errors: DFLY_LOAD_FAILED.
dfly_status dfly_channel_load(struct dfly_channel *channel,
                              const struct dfly_code *code,
                              const char *symbol,
                              uint32_t form,
                              uint16_t *index);

// Calls a function, waits, and copies the output to `output`. `deadline_ms` limits the execution in milliseconds; 0
// means no limit. `output_length` receives the length of the output in bytes and may be NULL; `input` and `output` may
// be NULL if their length is 0. If the output does not fit, the status is DFLY_OUTPUT_OVERFLOW, `output_length`
// receives the required size, and `dfly_channel_output` returns the output without another call. No submitted call may
// be outstanding.
dfly_status dfly_channel_call(struct dfly_channel *channel,
                              uint16_t function,
                              uint32_t deadline_ms,
                              const void *input,
                              size_t input_length,
                              void *output,
                              size_t output_capacity,
                              size_t *output_length);

// Calls a function on the first `input_length` bytes of one buffer and writes its output to another. Both buffers must
// belong to this channel. Over shared memory nothing is copied. `deadline_ms` as in `dfly_channel_call`.
// `output_length` receives the number of bytes written and may be NULL.
dfly_status dfly_channel_call_into(struct dfly_channel *channel,
                                   uint16_t function,
                                   uint32_t deadline_ms,
                                   const struct dfly_buffer *input,
                                   size_t input_length,
                                   struct dfly_buffer *output,
                                   size_t *output_length);

// Submits a call without waiting. `sequence` receives its number and may be NULL. The input may be reused at once.
// `deadline_ms` as in `dfly_channel_call`. Take one completion for each call, with `dfly_channel_poll` or
// `dfly_channel_wait`. Errors: DFLY_REJECTED if as many calls are outstanding as the ring has slots.
dfly_status dfly_channel_submit(struct dfly_channel *channel,
                                uint16_t function,
                                uint32_t deadline_ms,
                                const void *input,
                                size_t input_length,
                                uint32_t *sequence);

// As `dfly_channel_submit`, without a copy. The call takes ownership of the buffer, even on an error.
dfly_status dfly_channel_submit_buffer(struct dfly_channel *channel,
                                       uint16_t function,
                                       uint32_t deadline_ms,
                                       struct dfly_buffer *input,
                                       size_t input_length,
                                       uint32_t *sequence);

// Takes the next completion, in the order of submission, without waiting. `came` is set to whether there was one. The
// status of a failed call is in the completion; this function returns the status of the channel.
dfly_status dfly_channel_poll(struct dfly_channel *channel, struct dfly_completion *completion, bool *came);

// Waits up to `timeout_ms` milliseconds for the next completion, or without limit with DFLY_FOR_EVER. Errors:
// DFLY_TIMED_OUT.
dfly_status dfly_channel_wait(struct dfly_channel *channel, uint32_t timeout_ms, struct dfly_completion *completion);

// Returns the output of the last completion, or the output that did not fit in `dfly_channel_call`. `output` receives
// its address, valid until the next function of this channel; `length` receives its length in bytes and may be NULL.
// Errors: DFLY_NOT_FOUND if there is no output.
dfly_status dfly_channel_output(struct dfly_channel *channel, const void **output, size_t *length);

// Frees the slot of the last completion and its output. The functions that load, call, submit, poll or wait do this
// first.
dfly_status dfly_channel_done(struct dfly_channel *channel);

// Cancels the submitted call `sequence` by stopping its worker, now or when the call begins. The channel ends with the
// worker.
dfly_status dfly_channel_cancel(struct dfly_channel *channel, uint32_t sequence);

// Returns the channel's transport: DFLY_TRANSPORT_SHM, _TCP, _TLS or _LIBFABRIC.
uint32_t dfly_channel_transport(const struct dfly_channel *channel);

// Returns the name of the transport: `shm`, `tcp`, `tls`, or `libfabric:` with provider and domain. The text is valid
// as long as the channel. Returns "" if `channel` is NULL.
const char *dfly_channel_transport_name(const struct dfly_channel *channel);

// Returns the process id of the worker on its host; 0 if `channel` is NULL.
uint32_t dfly_channel_worker_pid(const struct dfly_channel *channel);

// Returns the number of submitted calls without a completion; 0 if `channel` is NULL.
uint32_t dfly_channel_outstanding(const struct dfly_channel *channel);

// Closes and frees a channel. Its buffers remain usable. NULL is a no-op.
void dfly_channel_free(struct dfly_channel *channel);

// Sets every option to its default. `options` must not be NULL.
dfly_status dfly_pool_options_init(struct dfly_pool_options *options);

// Sets every option to its default. `options` must not be NULL.
dfly_status dfly_call_options_init(struct dfly_call_options *options);

// Returns the address of an output's bytes, valid until the output is freed, or in the buffer that the
// call was given; NULL if `output` is NULL.
const void *dfly_output_data(const struct dfly_output *output);

// Returns the length of an output in bytes; 0 if `output` is NULL.
size_t dfly_output_length(const struct dfly_output *output);

// Frees an output. NULL is a no-op.
void dfly_output_free(struct dfly_output *output);

// Opens a channel to every worker of a lease. `options` may be NULL for the defaults. `pool` receives the pool; free
// it with `dfly_pool_free`.
dfly_status dfly_pool_open(const struct dfly_lease *lease,
                           const struct dfly_pool_options *options,
                           struct dfly_pool **pool);

// Registers a function of code that the lease has loaded. `form` is DFLY_FORM_PLAIN or DFLY_FORM_CHECKED. `id`
// receives its number for calls of this pool. A worker loads the function at its first call of it; that call fails
// with DFLY_LOAD_FAILED if the worker cannot.
dfly_status dfly_pool_function(const struct dfly_pool *pool,
                               const struct dfly_code *code,
                               const char *symbol,
                               uint32_t form,
                               uint32_t *id);

// Submits a call, or queues it until a worker is free. `call` receives its number. The input may be reused at once.
// Take the outcome with `dfly_pool_wait`, or discard it with `dfly_pool_forget`. `options` may be NULL for the
// defaults; `input` may be NULL if `input_length` is 0.
dfly_status dfly_pool_submit(const struct dfly_pool *pool,
                             uint32_t function,
                             const void *input,
                             size_t input_length,
                             const struct dfly_call_options *options,
                             uint64_t *call);

// As `dfly_pool_submit`, with a buffer from `dfly_pool_buffer_alloc`. The input is not copied if the call runs on the
// worker that the buffer was allocated for. The call takes ownership of the buffer, even on an error.
dfly_status dfly_pool_submit_buffer(const struct dfly_pool *pool,
                                    uint32_t function,
                                    struct dfly_buffer *input,
                                    size_t input_length,
                                    const struct dfly_call_options *options,
                                    uint64_t *call);

// As `dfly_pool_submit`, with a callback. It runs once, when the call has ended, in a thread that calls
// `dfly_pool_drive`. `user` is passed to it and may be NULL. `call` receives the call's number, for
// `dfly_pool_cancel`, and may be NULL.
dfly_status dfly_pool_submit_callback(const struct dfly_pool *pool,
                                      uint32_t function,
                                      const void *input,
                                      size_t input_length,
                                      const struct dfly_call_options *options,
                                      dfly_callback callback,
                                      void *user,
                                      uint64_t *call);

// As `dfly_pool_submit`, with buffers of `dfly_pool_buffer_alloc` or `dfly_pool_buffer_alloc_for` that the caller
// keeps. The function reads the first `input_length` bytes of `input` and writes `output` in place: they are not copied
// if both buffers were allocated for one worker, except an output that fits in a slot. The call goes to that worker,
// unless it is so busy that a copy for another one costs less. `input` may be NULL if `input_length` is 0, and `output`
// may be NULL; the output is then as of `dfly_pool_submit`. Until its outcome was taken or discarded, the caller must
// not write the input or use the output; another call may use the input. If `callback` is not NULL, it runs as in
// `dfly_pool_submit_callback` and `call` may be NULL; otherwise take the outcome with `dfly_pool_wait`. Errors:
// DFLY_INVALID_REQUEST if a call uses a buffer; DFLY_OUTPUT_OVERFLOW as the status of a call whose output does not fit.
dfly_status dfly_pool_submit_into(const struct dfly_pool *pool,
                                  uint32_t function,
                                  const struct dfly_buffer *input,
                                  size_t input_length,
                                  const struct dfly_buffer *output,
                                  const struct dfly_call_options *options,
                                  dfly_callback callback,
                                  void *user,
                                  uint64_t *call);

// Progresses all calls until calls with a callback end, at most `timeout_ms` milliseconds, and runs their callbacks.
// `ended` receives their number, 0 after the timeout, and may be NULL.
dfly_status dfly_pool_drive(const struct dfly_pool *pool, uint32_t timeout_ms, size_t *ended);

// Waits up to `timeout_ms` milliseconds for the end of a call, or without limit if that is negative. Returns the
// status of the call. `output` receives its output, or NULL on an error; free it with `dfly_output_free`. After
// DFLY_TIMED_OUT the call continues and can be waited for again. The outcome of a call can be taken once.
dfly_status dfly_pool_wait(const struct dfly_pool *pool,
                           uint64_t call,
                           int64_t timeout_ms,
                           struct dfly_output **output);

// Calls a function, waits, and copies the output to `output`. `output_length` receives the length of the output in
// bytes and may be NULL. If the output does not fit, the status is DFLY_OUTPUT_OVERFLOW, `output_length` receives the
// required size, and the output is lost. `options` may be NULL for the defaults.
dfly_status dfly_pool_call(const struct dfly_pool *pool,
                           uint32_t function,
                           const void *input,
                           size_t input_length,
                           const struct dfly_call_options *options,
                           void *output,
                           size_t output_capacity,
                           size_t *output_length);

// Returns whether a call has ended; false if `pool` is NULL.
bool dfly_pool_is_done(const struct dfly_pool *pool, uint64_t call);

// Removes a call from the queue; it ends with DFLY_CANCELLED. `cancelled` is set to false if it was already sent or
// has ended, and may be NULL.
dfly_status dfly_pool_cancel(const struct dfly_pool *pool, uint64_t call, bool *cancelled);

// Ends a call with DFLY_CANCELLED even if it runs, by stopping its worker. Other calls sent to that worker run on other
// workers.
dfly_status dfly_pool_kill(const struct dfly_pool *pool, uint64_t call);

// Discards the outcome of a call. A queued call is dropped; a call that was sent continues.
dfly_status dfly_pool_forget(const struct dfly_pool *pool, uint64_t call);

// Returns the number of workers that take calls, now or after their repair; 0 if `pool` is NULL or its lease has
// ended.
size_t dfly_pool_remaining_workers(const struct dfly_pool *pool);

// Returns the number of calls that have not ended; 0 if `pool` is NULL.
size_t dfly_pool_pending(const struct dfly_pool *pool);

// Returns how many times worker number `worker` has been started: the incarnation that holds its state, for
// `dfly_call_options`. Returns 0 if `pool` is NULL, or if the worker has no channel now.
uint32_t dfly_pool_incarnation(const struct dfly_pool *pool, uint32_t worker);

// Closes and frees a pool. Pending callbacks are called with DFLY_CANCELLED. Outputs and buffers remain usable. NULL
// is a no-op, and so is the pool of a fleet.
void dfly_pool_free(struct dfly_pool *pool);

// Allocates a buffer of `length` bytes for an input, for the worker with the fewest outstanding calls. `worker`
// receives that worker's number, for `dfly_call_options`, and may be NULL. `buffer` receives the buffer; submit it, or
// free it with `dfly_buffer_free`.
dfly_status dfly_pool_buffer_alloc(const struct dfly_pool *pool,
                                   size_t length,
                                   struct dfly_buffer **buffer,
                                   uint32_t *worker);

// Allocates a buffer as `dfly_pool_buffer_alloc`, for worker number `worker`, counted from 0.
dfly_status dfly_pool_buffer_alloc_for(const struct dfly_pool *pool,
                                       uint32_t worker,
                                       size_t length,
                                       struct dfly_buffer **buffer);

// Reports how many bytes of inputs and outputs of this pool did not travel in place, but were copied. Either may be
// NULL.
dfly_status dfly_pool_copied(const struct dfly_pool *pool, uint64_t *input, uint64_t *output);

// Sets every option to its default. `options` must not be NULL.
dfly_status dfly_fleet_options_init(struct dfly_fleet_options *options);

// Opens a fleet and returns at once; the first worker serves calls while others are started. `options` may be NULL for
// the defaults. `fleet` receives the fleet; free it with `dfly_fleet_free`.
dfly_status dfly_fleet_open(const struct dfly_client *client,
                            const struct dfly_fleet_options *options,
                            struct dfly_fleet **fleet);

// Returns the pool of a fleet, for the functions of pools; NULL if `fleet` is NULL. The fleet owns the pool, and frees
// it. Options of a call that name a worker or an incarnation are refused with DFLY_INVALID_REQUEST, because the workers
// come and go; `dfly_pool_buffer_alloc_for` and `dfly_pool_delegate` are, too.
const struct dfly_pool *dfly_fleet_pool(const struct dfly_fleet *fleet);

// Sends a shared library to all nodes of a fleet, also to those that join later. `code` receives its identity. Errors:
// DFLY_NOT_FOUND if the file cannot be read.
dfly_status dfly_fleet_load_library(const struct dfly_fleet *fleet, const char *path, struct dfly_code *code);

// Returns the number of workers that serve calls of a fleet or are being repaired; 0 if `fleet` is NULL.
uint32_t dfly_fleet_workers(const struct dfly_fleet *fleet);

// Returns the number of nodes on which a fleet has leases; 0 if `fleet` is NULL.
uint32_t dfly_fleet_nodes(const struct dfly_fleet *fleet);

// Waits up to `timeout_ms` milliseconds until a fleet has at least `workers` workers. Errors: DFLY_TIMED_OUT, with the
// reason of the last refused lease in the message.
dfly_status dfly_fleet_wait(const struct dfly_fleet *fleet, uint32_t workers, uint32_t timeout_ms);

// Releases all workers of a fleet now. Calls that have not ended end with DFLY_LEASE_ENDED.
dfly_status dfly_fleet_close(const struct dfly_fleet *fleet);

// Closes and frees a fleet and its pool. Pending callbacks are called with DFLY_CANCELLED. Outputs and buffers remain
// usable. NULL is a no-op.
void dfly_fleet_free(struct dfly_fleet *fleet);

// Makes a planner that knows nothing and has no workers. `offload` receives it; free it with `dfly_offload_free`.
dfly_status dfly_offload_new(struct dfly_offload **offload);

// Sets the number of workers of a pool. They share the bandwidth to them.
dfly_status dfly_offload_set_workers(const struct dfly_offload *offload, uint32_t workers);

// Records that the program computed `calls` calls, in `seconds` of one thread. `function` is any number of the
// caller's for the function, and `bytes` the size of the input and output of one call. Times that cannot be are
// ignored.
dfly_status dfly_offload_record_local(const struct dfly_offload *offload,
                                      uint64_t function,
                                      uint64_t bytes,
                                      uint64_t calls,
                                      double seconds);

// Records a call on a worker that has ended with an output. `submitted`, `sent` and `ended` are times of one clock in
// seconds: before and after the submission, and when the output was there. `worker` is the worker's number, or
// DFLY_ANY_WORKER if the pool chose one. `is_exact` says that a thread waited for the end; if not, the call may have
// ended before `ended`. Times that cannot be are ignored.
dfly_status dfly_offload_record_remote(const struct dfly_offload *offload,
                                       uint64_t function,
                                       uint64_t bytes,
                                       uint32_t worker,
                                       double submitted,
                                       double sent,
                                       double ended,
                                       bool is_exact);

// Divides `calls` calls with `bytes` bytes of input and output each, for a program that computes with `threads`
// threads. `split` receives the result. `by_worker` may be NULL; else it has room for `workers` numbers and receives
// the calls of each worker.
dfly_status dfly_offload_split(const struct dfly_offload *offload,
                               uint64_t function,
                               uint64_t bytes,
                               uint64_t calls,
                               uint32_t threads,
                               struct dfly_split *split,
                               uint64_t *by_worker,
                               uint32_t workers);

// Returns in `times` what is known of a function and a size on `worker`.
dfly_status dfly_offload_estimate(const struct dfly_offload *offload,
                                  uint64_t function,
                                  uint64_t bytes,
                                  uint32_t worker,
                                  struct dfly_offload_times *times);

// Frees an offload. NULL is a no-op.
void dfly_offload_free(struct dfly_offload *offload);

// Delegates `workers` of a pool's workers for at most `duration_ms` milliseconds. Waits up to `limit_ms` milliseconds
// until the calls on them have ended. The pool does not use these workers until `dfly_pool_take_back`. `users` is the
// lease of isolated workers that may use the delegation, or NULL. `delegation` receives the delegation; free it with
// `dfly_delegation_free`.
dfly_status dfly_pool_delegate(const struct dfly_pool *pool,
                               uint32_t workers,
                               uint64_t duration_ms,
                               const struct dfly_lease *users,
                               uint64_t limit_ms,
                               struct dfly_delegation **delegation);

// Revokes a delegation of this pool. Its channels are closed, and the pool uses its workers again.
dfly_status dfly_pool_take_back(const struct dfly_pool *pool, const struct dfly_delegation *delegation);

// Returns a delegation as text, to pass to a function as input. The text is a credential: keep it secret. It is valid
// as long as the handle. Returns NULL if `delegation` is NULL.
const char *dfly_delegation_text(const struct dfly_delegation *delegation);

// Parses the text of a delegation. `delegation` receives the delegation; free it with `dfly_delegation_free`. Errors:
// DFLY_INVALID_REQUEST if the text is malformed.
dfly_status dfly_delegation_read(const char *text, struct dfly_delegation **delegation);

// Opens the workers of a delegation as a lease, which cannot be renewed or released. `lease` receives the lease; free
// it with `dfly_lease_free`.
dfly_status dfly_delegation_open(const struct dfly_delegation *delegation, struct dfly_lease **lease);

// Frees the handle. The delegation itself stays in force. NULL is a no-op.
void dfly_delegation_free(struct dfly_delegation *delegation);

// Sets every option to its default. `options` must not be NULL.
dfly_status dfly_group_options_init(struct dfly_group_options *options);

// Joins a group, and returns when all ranks have joined and are connected. If `options` is NULL, the environment
// variable DAYFLY_GROUP names the group; `dayfly run` sets it for the programs that it starts. Without the variable,
// the process is a group of one. A process can join a group once; use `dfly_group_dup` for another handle. `group`
// receives the group; free it with `dfly_group_free`. Errors: DFLY_TIMED_OUT if a rank does not join in time.
dfly_status dfly_group_join(const struct dfly_group_options *options, struct dfly_group **group);

// Returns this process's rank, counted from 0; DFLY_NO_RANK if `group` is NULL.
uint32_t dfly_group_rank(const struct dfly_group *group);

// Returns the number of ranks; 0 if `group` is NULL.
uint32_t dfly_group_size(const struct dfly_group *group);

// Translates a rank of a part into the rank in the group that the process joined. `member` receives it.
dfly_status dfly_group_member(const struct dfly_group *group, uint32_t rank, uint32_t *member);

// Splits a group. Ranks with the same colour form a part, ordered by key and then by rank. A rank with colour
// DFLY_NO_COLOR belongs to no part and receives NULL. All ranks must call it. `part` receives the part; free it with
// `dfly_group_free`.
dfly_status dfly_group_split(const struct dfly_group *group, uint32_t color, int64_t key, struct dfly_group **part);

// Makes another group of the same ranks, whose messages are separate. All ranks must call it. `copy` receives the
// group; free it with `dfly_group_free`.
dfly_status dfly_group_dup(const struct dfly_group *group, struct dfly_group **copy);

// Makes a group of the surviving ranks, after they agree on which ranks are lost. All surviving ranks must call it.
// `rest` receives the group; free it with `dfly_group_free`.
dfly_status dfly_group_shrink(const struct dfly_group *group, struct dfly_group **rest);

// Frees a group. This rank leaves when its last part and request are freed. The others treat this as a normal end; a
// process that exits without it is a lost rank for every rank that still waits for it. NULL is a no-op.
void dfly_group_free(struct dfly_group *group);

// Returns the size of an element of a datatype in bytes; 0 if the datatype is unknown.
size_t dfly_datatype_bytes(uint32_t datatype);

// Defines a reduction operation. `operation` receives its number, which is valid in this process. All ranks must
// define it with the same function. `combine` must be associative; `commutative` states whether ranks may also be
// combined in another order. `user` may be NULL and is passed to each call of `combine`. Free the operation with
// `dfly_operation_free`.
dfly_status dfly_operation_create(dfly_combine combine, void *user, bool commutative, uint32_t *operation);

// Frees an operation made by `dfly_operation_create`. Reductions that are in progress still use it. Errors:
// DFLY_INVALID_REQUEST if there is no such operation.
dfly_status dfly_operation_free(uint32_t operation);

// Waits until an operation completes. After an error the operation has ended. `message` receives the envelope of a
// receive and may be NULL. Errors: DFLY_TIMED_OUT after the group's deadline, and the errors of the operation.
dfly_status dfly_request_wait(struct dfly_request *request, struct dfly_message *message);

// Waits until all `count` requests complete. Returns the first error and stops waiting; the remaining requests stay
// valid.
dfly_status dfly_request_wait_all(struct dfly_request *const *requests, size_t count);

// Progresses the group without waiting. `over` is set to whether the operation has completed. `message` receives the
// envelope of a completed receive and may be NULL. Errors: those of the operation.
dfly_status dfly_request_test(struct dfly_request *request, struct dfly_message *message, bool *over);

// Frees a request. An operation in progress is cancelled; its memory may then be reused, and its content is undefined.
// If one rank cancels a collective, it does not complete on the others. NULL is a no-op.
void dfly_request_free(struct dfly_request *request);

// Sends `count` elements to a rank and waits until `data` may be reused. For a large message, that is when the message
// has been received. `data` may be NULL if `count` is 0.
dfly_status dfly_group_send(const struct dfly_group *group,
                            const void *data,
                            size_t count,
                            uint32_t datatype,
                            uint32_t to,
                            uint32_t tag);

// Receives a message of at most `count` elements from one rank, or from any with DFLY_ANY_RANK, under one tag, or any
// with DFLY_ANY_TAG. Messages of one rank under one tag arrive in the order of sending. `message` receives the
// envelope and may be NULL. Errors: DFLY_TRUNCATED if the message is longer.
dfly_status dfly_group_recv(const struct dfly_group *group,
                            void *into,
                            size_t count,
                            uint32_t datatype,
                            uint32_t from,
                            uint32_t tag,
                            struct dfly_message *message);

// Sends one message and receives another at the same time, so that ranks can exchange messages in a cycle without a
// deadlock. The two buffers may overlap: the outgoing message is then copied first. `message` receives the envelope
// and may be NULL.
dfly_status dfly_group_sendrecv(const struct dfly_group *group,
                                const void *data,
                                size_t count,
                                uint32_t to,
                                uint32_t send_tag,
                                void *into,
                                size_t capacity,
                                uint32_t from,
                                uint32_t receive_tag,
                                uint32_t datatype,
                                struct dfly_message *message);

// Waits until a receive with this source and tag would find a message. Does not receive it. `message` receives the
// envelope.
dfly_status dfly_group_probe(const struct dfly_group *group, uint32_t from, uint32_t tag, struct dfly_message *message);

// As `dfly_group_probe`, but does not wait. `came` is set to whether a message is available. `message` receives its
// envelope and may be NULL.
dfly_status dfly_group_iprobe(const struct dfly_group *group,
                              uint32_t from,
                              uint32_t tag,
                              struct dfly_message *message,
                              bool *came);

// Starts to send. `data` must stay unchanged until the request completes. `request` receives the request; free it with
// `dfly_request_free`.
dfly_status dfly_group_isend(const struct dfly_group *group,
                             const void *data,
                             size_t count,
                             uint32_t datatype,
                             uint32_t to,
                             uint32_t tag,
                             struct dfly_request **request);

// Starts to receive. The memory `into` must not be used until the request completes. `request` receives the request;
// free it with `dfly_request_free`.
dfly_status dfly_group_irecv(const struct dfly_group *group,
                             void *into,
                             size_t count,
                             uint32_t datatype,
                             uint32_t from,
                             uint32_t tag,
                             struct dfly_request **request);

// Blocks until all ranks have called it. `request` may be NULL.
dfly_status dfly_group_barrier(const struct dfly_group *group, struct dfly_request **request);

// Copies the root's `count` elements to all ranks. `request` may be NULL.
dfly_status dfly_group_bcast(const struct dfly_group *group,
                             void *data,
                             size_t count,
                             uint32_t datatype,
                             uint32_t root,
                             struct dfly_request **request);

// Gathers `count` elements from every rank to the root, in the order of the ranks. `into` has room for `count`
// elements of each rank; it is used at the root only and may be NULL elsewhere. `request` may be NULL.
dfly_status dfly_group_gather(const struct dfly_group *group,
                              const void *own,
                              size_t count,
                              uint32_t datatype,
                              void *into,
                              uint32_t root,
                              struct dfly_request **request);

// As `dfly_group_gather`, with a different number of elements from each rank. The `counts[i]` elements of rank i are
// written from element `displacements[i]` of `into`. If `displacements` is NULL, the blocks are contiguous. `into`,
// `counts` and `displacements` are used at the root only. `request` may be NULL.
dfly_status dfly_group_gatherv(const struct dfly_group *group,
                               const void *own,
                               size_t count,
                               uint32_t datatype,
                               void *into,
                               const size_t *counts,
                               const size_t *displacements,
                               uint32_t root,
                               struct dfly_request **request);

// Distributes the root's elements: rank i receives the i-th block of `count` elements. `all` is used at the root only
// and may be NULL elsewhere. `request` may be NULL.
dfly_status dfly_group_scatter(const struct dfly_group *group,
                               const void *all,
                               void *into,
                               size_t count,
                               uint32_t datatype,
                               uint32_t root,
                               struct dfly_request **request);

// As `dfly_group_scatter`, with a different number of elements for each rank. Rank i receives `counts[i]` elements
// from element `displacements[i]` of `all`. If `displacements` is NULL, the blocks are contiguous. `all`, `counts` and
// `displacements` are used at the root only. `count` is the number of elements that this rank receives. `request` may
// be NULL.
dfly_status dfly_group_scatterv(const struct dfly_group *group,
                                const void *all,
                                const size_t *counts,
                                const size_t *displacements,
                                void *into,
                                size_t count,
                                uint32_t datatype,
                                uint32_t root,
                                struct dfly_request **request);

// Gathers `count` elements from every rank to all ranks, in the order of the ranks. `request` may be NULL.
dfly_status dfly_group_allgather(const struct dfly_group *group,
                                 const void *own,
                                 size_t count,
                                 uint32_t datatype,
                                 void *into,
                                 struct dfly_request **request);

// As `dfly_group_allgather`, with a different number of elements from each rank; `counts` and `displacements` as in
// `dfly_group_gatherv`. They must be equal on all ranks. `request` may be NULL.
dfly_status dfly_group_allgatherv(const struct dfly_group *group,
                                  const void *own,
                                  size_t count,
                                  uint32_t datatype,
                                  void *into,
                                  const size_t *counts,
                                  const size_t *displacements,
                                  struct dfly_request **request);

// Sends the i-th block of `count` elements of `own` to rank i, and receives a block from every rank. `request` may be
// NULL.
dfly_status dfly_group_alltoall(const struct dfly_group *group,
                                const void *own,
                                void *into,
                                size_t count,
                                uint32_t datatype,
                                struct dfly_request **request);

// As `dfly_group_alltoall`, with a different number of elements for each pair of ranks. Sends `sent[i]` elements to
// rank i, from element `sent_displacements[i]` of `own`. Writes the `received[i]` elements from rank i at element
// `received_displacements[i]` of `into`. If displacements are NULL, the blocks are contiguous. `request` may be NULL.
dfly_status dfly_group_alltoallv(const struct dfly_group *group,
                                 const void *own,
                                 const size_t *sent,
                                 const size_t *sent_displacements,
                                 void *into,
                                 const size_t *received,
                                 const size_t *received_displacements,
                                 uint32_t datatype,
                                 struct dfly_request **request);

// Reduces the elements of all ranks to the root. `into` is used at the root only and may be NULL elsewhere. `request`
// may be NULL.
dfly_status dfly_group_reduce(const struct dfly_group *group,
                              const void *own,
                              void *into,
                              size_t count,
                              uint32_t datatype,
                              uint32_t operation,
                              uint32_t root,
                              struct dfly_request **request);

// Reduces the elements of all ranks to all ranks. `request` may be NULL.
dfly_status dfly_group_allreduce(const struct dfly_group *group,
                                 const void *own,
                                 void *into,
                                 size_t count,
                                 uint32_t datatype,
                                 uint32_t operation,
                                 struct dfly_request **request);

// Reduces the elements of all ranks; rank i receives `counts[i]` elements of the result. `counts` must be equal on all
// ranks. `request` may be NULL.
dfly_status dfly_group_reduce_scatter(const struct dfly_group *group,
                                      const void *own,
                                      void *into,
                                      const size_t *counts,
                                      uint32_t datatype,
                                      uint32_t operation,
                                      struct dfly_request **request);

// Inclusive prefix reduction: reduces the elements of ranks 0 to this rank. `request` may be NULL.
dfly_status dfly_group_scan(const struct dfly_group *group,
                            const void *own,
                            void *into,
                            size_t count,
                            uint32_t datatype,
                            uint32_t operation,
                            struct dfly_request **request);

// Exclusive prefix reduction: reduces the elements of the ranks before this one. `into` of rank 0 is not changed.
// `request` may be NULL.
dfly_status dfly_group_exscan(const struct dfly_group *group,
                              const void *own,
                              void *into,
                              size_t count,
                              uint32_t datatype,
                              uint32_t operation,
                              struct dfly_request **request);

#ifdef __cplusplus
}  // extern "C"
#endif  // __cplusplus

#endif  /* DAYFLY_H */
