/* Dayfly for C: lease workers and invoke functions on them, and have programs talk to each other. Generated from
 * bindings/c/src by `make generate`.
 *
 * Functions answer a status; after an error dfly_last_error_message() says what happened. Handles are made by
 * functions that write them through their last argument, and freed in any order: a channel keeps its lease, a
 * lease its client. Clients, leases, pools and groups may be used by any thread at any time, channels, buffers,
 * outputs and requests by one thread at a time; nobody may use what another thread frees. A child that was
 * forked gets DFLY_FORKED from every handle of its parent's, and may connect anew. */
#ifndef DAYFLY_H
#define DAYFLY_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

// Hot where the node has cores to give, else warm; `dfly_lease_is_hot` tells which.
#define DFLY_MODE_AUTO 0

// Each worker owns its core and polls.
#define DFLY_MODE_HOT 1

// Workers sleep until woken and share cores.
#define DFLY_MODE_WARM 2

// The best transport for the place: shared memory on one host, TCP on its loopback, else TLS.
#define DFLY_TRANSPORT_BEST 0

// Shared memory of one host.
#define DFLY_TRANSPORT_SHM 1

// TCP in clear, on the loopback or where the site trusts its fabric.
#define DFLY_TRANSPORT_TCP 2

// TCP under TLS 1.3.
#define DFLY_TRANSPORT_TLS 3

// Remote memory over libfabric, where the node offers a fabric.
#define DFLY_TRANSPORT_LIBFABRIC 4

// `uint32_t f(void *in, uint32_t size, void *out)`, which answers the bytes written.
#define DFLY_FORM_PLAIN 0

// `int32_t f(dfly_context *, const void *in, size_t in_len, void *out, size_t out_capacity, size_t *out_len)`.
#define DFLY_FORM_CHECKED 1

// How isolated the workers are is for the site to say.
#define DFLY_SANDBOX_SITE 0

// Processes of the node's own user: for code that is trusted like its owner.
#define DFLY_SANDBOX_PROCESS 1

// No privilege, no network, no files but programs and libraries, bounded memory: for other people's code.
#define DFLY_SANDBOX_ISOLATED 2

// The same with an image in place of the host's programs and libraries.
#define DFLY_SANDBOX_CONTAINER 3

// For ever, as a time in milliseconds or microseconds.
#define DFLY_FOR_EVER 4294967295

// Standard output.
#define DFLY_STREAM_OUT 1

// Standard error.
#define DFLY_STREAM_ERR 2

// Any worker, in `dfly_call_options`.
#define DFLY_ANY_WORKER 4294967295

// Any rank, as a source of messages; also: whichever rank is free, in `dfly_group_options`.
#define DFLY_ANY_RANK 4294967295

// No rank: what is sent there goes nowhere, and nothing is received from it.
#define DFLY_NO_RANK 4294967294

// No part, in `dfly_group_split`.
#define DFLY_NO_COLOR 4294967295

// Bytes without a meaning.
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

// A `double` and an `int64_t`: a value and its place, for DFLY_MIN_AT and DFLY_MAX_AT.
#define DFLY_F64_AT 14

// As DFLY_F64_AT, of two `int64_t`.
#define DFLY_I64_AT 15

// `double`, `int32_t` and four bytes that mean nothing, as MPI's pairs are laid out; the next four likewise.
#define DFLY_F64_AT32 16

// `int64_t`, `int32_t` and four bytes that mean nothing.
#define DFLY_I64_AT32 17

// `float` and `int32_t`.
#define DFLY_F32_AT32 18

// Two `int32_t`.
#define DFLY_I32_AT32 19

// `int16_t`, two bytes that mean nothing, and `int32_t`.
#define DFLY_I16_AT32 20

// Sums; those of integers wrap around.
#define DFLY_SUM 1

// Products; those of integers wrap around.
#define DFLY_PRODUCT 2

// The smallest.
#define DFLY_MIN 3

// The largest.
#define DFLY_MAX 4

// Whether all are true (not zero).
#define DFLY_LOGICAL_AND 5

// Whether any is true.
#define DFLY_LOGICAL_OR 6

// Whether an odd number of them is true.
#define DFLY_LOGICAL_XOR 7

// Bits that are set in all.
#define DFLY_BIT_AND 8

// Bits that are set in any.
#define DFLY_BIT_OR 9

// Bits that are set in an odd number of them.
#define DFLY_BIT_XOR 10

// The smallest value and the lowest place of it.
#define DFLY_MIN_AT 11

// The largest value and the lowest place of it.
#define DFLY_MAX_AT 12

// Any tag, in a receive.
#define DFLY_ANY_TAG 4294967295

// How a function ended. Numbers and names never change their meaning.
enum dfly_status
#if defined(__cplusplus) || __STDC_VERSION__ >= 202311L
  : int32_t
#endif // defined(__cplusplus) || __STDC_VERSION__ >= 202311L
 {
    // It did what was asked.
    DFLY_OK = 0,
    // The request is malformed or contradicts itself; also every misuse of this library that it can see.
    DFLY_INVALID_REQUEST = 1,
    // No such lease, node, worker, call, file or function.
    DFLY_NOT_FOUND = 2,
    // The token, its signature, its holder's signature or the bearer is not accepted.
    DFLY_UNAUTHORIZED = 3,
    // The lease or its token has expired.
    DFLY_LEASE_EXPIRED = 4,
    // The lease was released by its holder or revoked by an operator.
    DFLY_LEASE_ENDED = 5,
    // No node has the wanted cores, memory or workers free.
    DFLY_NO_CAPACITY = 6,
    // The request asks for more than the site's policy or any node could ever give.
    DFLY_TOO_LARGE = 7,
    // Client and server speak different wire versions.
    DFLY_VERSION_MISMATCH = 8,
    // Client and worker run different Python or cloudpickle versions.
    DFLY_PYTHON_MISMATCH = 9,
    // The executor, or an embedded manager, could not be started.
    DFLY_EXECUTOR_FAILED = 10,
    // Another channel is already open to this worker.
    DFLY_WORKER_BUSY = 11,
    // The hello was seen before, or its clock is too far from the node's.
    DFLY_REPLAYED = 12,
    // The transport is not available here or not allowed by site policy.
    DFLY_TRANSPORT_REFUSED = 13,
    // The code could not be loaded, or has no such symbol.
    DFLY_LOAD_FAILED = 14,
    // The code's bytes do not have the hash they were announced with.
    DFLY_HASH_MISMATCH = 15,
    // The function reported an error; its text is the message.
    DFLY_FUNCTION_ERROR = 16,
    // The function's output did not fit into its room.
    DFLY_OUTPUT_OVERFLOW = 17,
    // The worker died during the call: it may have been executed.
    DFLY_MAYBE_EXECUTED = 18,
    // The worker died before the call began: it was not executed.
    DFLY_NOT_EXECUTED = 19,
    // The call ran past its deadline and was ended.
    DFLY_DEADLINE_EXCEEDED = 20,
    // The worker answered that it cannot run just now, or the ring is full.
    DFLY_REJECTED = 21,
    // The state that the call depends on died with its worker.
    DFLY_STATE_LOST = 22,
    // The manager or node cannot be reached.
    DFLY_UNREACHABLE = 23,
    // The wait was ended by the caller's own time limit.
    DFLY_TIMED_OUT = 24,
    // The store could not write (disk full, corrupt).
    DFLY_STORE_FAILED = 25,
    // The address is already in use.
    DFLY_ADDRESS_IN_USE = 26,
    // The manager's ownership of the node has passed to another.
    DFLY_STALE_EPOCH = 27,
    // Cancelled by the caller.
    DFLY_CANCELLED = 28,
    // A payload is larger than the channel or the lease allows.
    DFLY_PAYLOAD_TOO_LARGE = 29,
    // The peer broke the protocol.
    DFLY_PROTOCOL_VIOLATION = 30,
    // A fault of Dayfly itself.
    DFLY_INTERNAL = 31,
    // The function index is not resolved on this channel.
    DFLY_UNKNOWN_FUNCTION = 32,
    // Memory for inputs or outputs is used up.
    DFLY_OUT_OF_MEMORY = 33,
    // The handle was inherited through a fork and belongs to the parent process.
    DFLY_FORKED = 34,
    // The tenant has no budget or quota left for it, or is suspended.
    DFLY_QUOTA_EXCEEDED = 35,
    // The token is good, and does not allow this.
    DFLY_FORBIDDEN = 36,
    // A rank of the group died or fell silent.
    DFLY_RANK_LOST = 37,
    // The ranks of a group called operations that do not fit together.
    DFLY_MISMATCH = 38,
    // A message is longer than the room that its receiver has for it.
    DFLY_TRUNCATED = 39,
    // A task that this one was to come after did not end well.
    DFLY_DEPENDENCY_FAILED = 40,
    // The node still builds the environment that the workers are to have.
    DFLY_ENVIRONMENT_BUILDING = 41,
    // The environment that the workers are to have cannot be built.
    DFLY_ENVIRONMENT_FAILED = 42,
    // The call ended well, and its result cannot be made where it was fetched.
    DFLY_RESULT_UNREADABLE = 43,
    // Others can enter the state directory, and it is not the daemon's to close.
    DFLY_STATE_EXPOSED = 44,
    // The store lacks what it had before.
    DFLY_STORE_LOST = 45,
    // The lease must be isolated, and the node isolates nothing.
    DFLY_ISOLATION_UNAVAILABLE = 46,
    // Another tenant may have made the result, and it holds more than data.
    DFLY_UNTRUSTED = 47,
    // The beginning or end of an id is that of several.
    DFLY_AMBIGUOUS = 48,
};
#ifndef __cplusplus
#if __STDC_VERSION__ >= 202311L
typedef enum dfly_status dfly_status;
#else
typedef int32_t dfly_status;
#endif // __STDC_VERSION__ >= 202311L
#endif // __cplusplus

// What a program may do about an error without asking anybody.
enum dfly_retry
#if defined(__cplusplus) || __STDC_VERSION__ >= 202311L
  : int32_t
#endif // defined(__cplusplus) || __STDC_VERSION__ >= 202311L
 {
    // The request itself must change.
    DFLY_RETRY_NEVER = 0,
    // The same request may succeed later.
    DFLY_RETRY_LATER = 1,
    // The same request may succeed at once on another worker; nothing was executed.
    DFLY_RETRY_ELSEWHERE = 2,
    // It may have been executed: repeat it only if that does no harm.
    DFLY_RETRY_IF_IDEMPOTENT = 3,
};
#ifndef __cplusplus
#if __STDC_VERSION__ >= 202311L
typedef enum dfly_retry dfly_retry;
#else
typedef int32_t dfly_retry;
#endif // __STDC_VERSION__ >= 202311L
#endif // __cplusplus

// Memory of a channel or pool. Its bytes are the program's own to read and write, except while a call uses them. It
// may outlive its channel. Different threads may use different buffers.
typedef struct dfly_buffer dfly_buffer;

// A channel to one worker. One thread at a time may use it.
typedef struct dfly_channel dfly_channel;

// A client of a manager, or of one node. Any thread may use it.
typedef struct dfly_client dfly_client;

// Some workers of a lease, for whoever holds this or its text.
typedef struct dfly_delegation dfly_delegation;

// Ranks that exchange messages and compute together, seen from one of them. Any thread may use it, one at a time; others
// wait meanwhile. Counts are of elements of a datatype (DFLY_F64 and so on).
//
// The collectives, `dfly_group_barrier` to `dfly_group_exscan`, must be called by all ranks in the same order; those that do not
// fit together fail with DFLY_MISMATCH, and a message that says what the ranks called. They return when this rank's part is
// done if `request` is NULL; else they go on in the background, and all memory that they were given, but not the counts and
// displacements, must stay until that request is over. What they read may lie where they write: it is copied first.
//
// What needs a rank that is lost fails with DFLY_RANK_LOST, and a message that names it. What takes longer than the group's
// deadline, an hour unless it is said, fails with DFLY_TIMED_OUT.
typedef struct dfly_group dfly_group;

// The right to some workers. Any thread may use it. It is released with the last of it, its channels and pools.
typedef struct dfly_lease dfly_lease;

// The output of a call. One thread at a time may use it; it may outlive its pool.
typedef struct dfly_output dfly_output;

// A channel to every worker of a lease. Any thread may use it; whoever waits drives the calls of all.
typedef struct dfly_pool dfly_pool;

// Reads what a lease's workers print, from the lease's beginning. It keeps no lease alive, and reads on for a minute after one is
// over.
typedef struct dfly_printed dfly_printed;

// An operation in the background. It moves on whenever this process waits for anything of its group. One thread at a time
// may use it. It may outlive its group.
typedef struct dfly_request dfly_request;

// What to lease. Initialise with `dfly_lease_options_init`, then change what you want.
typedef struct dfly_lease_options {
    // Set by `dfly_lease_options_init`.
    size_t size;
    // Number of workers: 1.
    uint32_t workers;
    // Cores of each worker: 1.
    uint32_t cores_per_worker;
    // GPUs of each worker, which sees them alone, in CUDA_VISIBLE_DEVICES: 0.
    uint32_t gpus_per_worker;
    // Memory of the whole lease in bytes; 0 for the node's usual share.
    uint64_t memory_bytes;
    // How long from its first use: an hour.
    uint64_t duration_ms;
    // How long it outlives its last channel, 0 for as long as it lasts: 10 seconds.
    uint64_t idle_release_ms;
    // DFLY_MODE_AUTO, DFLY_MODE_HOT or DFLY_MODE_WARM.
    uint32_t mode;
    // How long a hot worker polls after a call before it sleeps: DFLY_FOR_EVER.
    uint32_t hot_for_ms;
    // DFLY_SANDBOX_SITE, DFLY_SANDBOX_PROCESS, DFLY_SANDBOX_ISOLATED or DFLY_SANDBOX_CONTAINER.
    uint32_t sandbox;
    // Image of a container, a name or path that the site allows; NULL for the site's first, or for no container.
    const char *image;
} dfly_lease_options;

// Identity of code: the hash of its bytes.
typedef struct dfly_code {
    // SHA-256.
    uint8_t hash[32];
} dfly_code;

// How much may be leased straight from nodes. Initialise with `dfly_allowance_options_init`, then change what you want.
typedef struct dfly_allowance_options {
    // Set by `dfly_allowance_options_init`.
    size_t size;
    // Memory of all workers together in bytes; 0 to leave it to the nodes.
    uint64_t memory_bytes;
    // The longest lease: an hour.
    uint64_t duration_ms;
    // Workers, of all leases at a time together: 1.
    uint32_t workers;
    // Cores of all of them together: 0 for one each.
    uint32_t cores;
    // Workers on one node at most: 0 for twice an even share.
    uint32_t workers_per_node;
    // As of a lease; all leases under the allowance have the same.
    uint32_t sandbox;
} dfly_allowance_options;

// How to open a channel. Initialise with `dfly_channel_options_init`, then change what you want.
typedef struct dfly_channel_options {
    // Set by `dfly_channel_options_init`.
    size_t size;
    // DFLY_TRANSPORT_BEST, _SHM, _TCP, _TLS or _LIBFABRIC.
    uint32_t transport;
    // Slots of each ring, a power of two: as many calls can be outstanding.
    uint32_t slots;
    // Bytes of a slot, a multiple of 128: larger payloads travel through bulk memory.
    uint32_t stride_bytes;
    // How long a wait polls before it sleeps, in microseconds; DFLY_FOR_EVER for ever, which spares the worker a fence.
    uint32_t spin_us;
    // Address space for bulk payloads each way, a multiple of 4096.
    uint64_t bulk_bytes;
    // For DFLY_TRANSPORT_LIBFABRIC: a provider, or a provider and domain such as `verbs/mlx5_0`; NULL for the one that the node
    // offers first.
    const char *fabric;
} dfly_channel_options;

// The end of a call that was submitted.
typedef struct dfly_completion {
    // The number that `dfly_channel_submit` answered.
    uint32_t sequence;
    // How the call ended.
    dfly_status status;
    // The output, or the text of the error. Valid until the next function of this channel.
    const void *output;
    // Its bytes.
    size_t length;
} dfly_completion;

// How a pool works. Initialise with `dfly_pool_options_init`, then change what you want.
typedef struct dfly_pool_options {
    // Set by `dfly_pool_options_init`.
    size_t size;
    // How its channels are opened.
    struct dfly_channel_options channel;
    // How often a call that was not executed, or is idempotent, is tried again elsewhere: 3.
    uint32_t retries;
    // Most calls that one worker may have outstanding; 0 to let measured times decide.
    uint32_t depth;
} dfly_pool_options;

// How one call is treated. Initialise with `dfly_call_options_init`, then change what you want.
typedef struct dfly_call_options {
    // Set by `dfly_call_options_init`.
    size_t size;
    // Milliseconds of execution allowed, after which its worker is ended: 0 for no limit.
    uint32_t deadline_ms;
    // Not 0 if running it twice does no harm, so that it is repeated when its worker died during it.
    uint32_t idempotent;
    // The only worker that may run it: DFLY_ANY_WORKER.
    uint32_t worker;
} dfly_call_options;

// What is told of the end of a call: its status, the text of its error or "", and its output, all valid during the
// callback. It runs in the thread that called `dfly_pool_drive` (or `dfly_pool_free`), and may use the pool, except to free
// it. It must not throw.
typedef void (*dfly_callback)(void *user, dfly_status status, const char *message, const void *output, size_t length);

// How a process finds its group where `dayfly run` has not started it. Initialise with `dfly_group_options_init`, then set
// `rendezvous`, `name`, `secret` and `ranks`, and change what else you want.
typedef struct dfly_group_options {
    // Set by `dfly_group_options_init`.
    size_t size;
    // Where the rendezvous is: `host:port`. A manager has one, `dayfly rendezvous` is one.
    const char *rendezvous;
    // Its key, in hexadecimal, as `dayfly rendezvous` prints it; NULL trusts whoever answers not to keep the ranks apart.
    const char *key;
    // Name of the group.
    const char *name;
    // Which run of it: ranks of one do not meet those of another; NULL for none.
    const char *run;
    // What all ranks know and nobody else: at least 16 bytes, in hexadecimal.
    const char *secret;
    // How many ranks the group has.
    uint32_t ranks;
    // Which one this is; DFLY_ANY_RANK for any that is free.
    uint32_t rank;
    // Seconds within which all ranks must have come and be connected.
    uint32_t patience_s;
    // Seconds that one operation may take.
    uint32_t deadline_s;
    // How long a rank that waits polls before it sleeps, in microseconds; DFLY_FOR_EVER for ever, and for not
    // at all where it waits for a store.
    uint32_t spin_us;
    // 1 if nobody listens between the hosts, so that nothing is encrypted; else 0.
    uint32_t trust_fabric;
    // URL of a store for ranks that reach each other in no other way: `s3://bucket/prefix`, `redis://host:port`, `rediss://` or
    // `file:///directory`; NULL for none. The same for all ranks.
    const char *store;
    // `direct`, or `stored` for ranks that exchange through the store alone; NULL for `direct`. The same for all ranks.
    const char *channel;
    // Provider of libfabric over which ranks on different hosts exchange, where both have it, such as `verbs`; NULL for none.
    // The same for all ranks, and with `trust_fabric`.
    const char *fabric;
    // 1 if two ranks are connected when one of them first needs the other, instead of all with all at the start; else 0. The same
    // for all ranks.
    uint32_t lazily;
} dfly_group_options;

// A program's own operation: combines `count` elements of `left` and `right` into `right` (`right = left op right`). It
// runs in whichever thread of this process waits for the group, perhaps on a part of a buffer at a time. It must not
// throw, and must not use the group.
typedef void (*dfly_combine)(void *user, const void *left, void *right, size_t count, uint32_t datatype);

// What a receive, or a probe, found.
typedef struct dfly_message {
    // Who sent it.
    uint32_t source;
    // Under which tag.
    uint32_t tag;
    // Its bytes.
    size_t length;
} dfly_message;

#ifdef __cplusplus
extern "C" {
#endif // __cplusplus

// What the last error of this thread was: what happened, and often what to do. Valid until the next error of this
// thread; never NULL. A success leaves it as it is.
const char *dfly_last_error_message(void);

// The status of the last error of this thread.
dfly_status dfly_last_error(void);

// The name of a status, as in docs/errors.md, such as `output_overflow`. Never NULL.
const char *dfly_error_name(int32_t status);

// What to do about an error, in one sentence. Never NULL.
const char *dfly_error_remedy(int32_t status);

// Whether the same request may be made again.
dfly_retry dfly_error_retry(int32_t status);

// Version of this library. Never NULL.
const char *dfly_version(void);

// Connects to the manager that `path` names (a connection file, or a state directory). NULL means: the one of the
// environment variable DAYFLY_MANAGER, else the one that this user runs, else an embedded one that ends with the last
// of this client, its leases, channels and pools, or with this process.
dfly_status dfly_client_connect(const char *path, struct dfly_client **client);

// Starts an embedded manager and node, whatever else is configured. `binary` names the program `dayfly`; NULL means the
// one of the environment variable DAYFLY_BIN, on the PATH, or beside this library.
dfly_status dfly_client_embedded(const char *binary, struct dfly_client **client);

// Leases from one node without a manager, by the allowance that the node wrote (`allowance.json`).
dfly_status dfly_client_node(const char *allowance, struct dfly_client **client);

// What it is connected to, for people. Lives as long as the client; empty for NULL.
const char *dfly_client_describe(const struct dfly_client *client);

// Closes the client. Leases, channels and pools of it live on. NULL is nothing.
void dfly_client_free(struct dfly_client *client);

// Sets every option to its default.
dfly_status dfly_lease_options_init(struct dfly_lease_options *options);

// Leases workers. NULL for `options` means the defaults: one worker for an hour.
dfly_status dfly_lease_open(const struct dfly_client *client,
                        const struct dfly_lease_options *options,
                        struct dfly_lease **lease);

// Sends a shared library to the node, unless it has it already.
dfly_status dfly_lease_load_library(const struct dfly_lease *lease, const char *path, struct dfly_code *code);

// As `dfly_lease_load_library`, from memory.
dfly_status dfly_lease_load_bytes(const struct dfly_lease *lease, const void *data, size_t length, struct dfly_code *code);

// Makes the lease last so long from now.
dfly_status dfly_lease_renew(const struct dfly_lease *lease, uint64_t duration_ms);

// Gives the workers back now. Channels end; calls that run are ended.
dfly_status dfly_lease_release(const struct dfly_lease *lease);

// Workers granted; 0 for NULL.
uint32_t dfly_lease_workers(const struct dfly_lease *lease);

// Whether the workers poll on cores of their own.
bool dfly_lease_is_hot(const struct dfly_lease *lease);

// The transport that channels of this lease use unless told otherwise.
uint32_t dfly_lease_transport(const struct dfly_lease *lease);

// Closes the handle; the lease is released when nothing else of it is left. NULL is nothing.
void dfly_lease_free(struct dfly_lease *lease);

// Opens what a lease's workers print. Their node keeps the last 256 KiB.
dfly_status dfly_printed_open(const struct dfly_lease *lease, struct dfly_printed **printed);

// The next piece, of one stream: up to `capacity` bytes are written to `into`, how many to `length`, and DFLY_STREAM_OUT or
// DFLY_STREAM_ERR to `stream`, which may be NULL. Pieces end anywhere. If there is none yet, waits for one, no longer than `wait_ms` and no
// longer than some seconds; `length` is 0 then.
dfly_status dfly_printed_read(struct dfly_printed *printed,
                          uint64_t wait_ms,
                          void *into,
                          size_t capacity,
                          size_t *length,
                          uint32_t *stream);

// Bytes that the node did not keep until they were read.
uint64_t dfly_printed_missed(const struct dfly_printed *printed);

// Whether the lease is over, and all was read.
bool dfly_printed_is_over(const struct dfly_printed *printed);

// Frees an output.
void dfly_printed_free(struct dfly_printed *printed);

// Sets every option to its default.
dfly_status dfly_allowance_options_init(struct dfly_allowance_options *options);

// A client whose leases come straight from nodes, under an allowance of its manager's, which hears of them afterwards: for many short
// leases, and for leases while the manager is away. NULL for `options` means the defaults: one worker at a time. The allowance is
// given back with the last of that client, its leases, channels and pools.
dfly_status dfly_client_allowance(const struct dfly_client *client,
                              const struct dfly_allowance_options *options,
                              struct dfly_client **direct);

// Allocates memory of a channel, aligned to 128 bytes.
dfly_status dfly_buffer_alloc(struct dfly_channel *channel, size_t length, struct dfly_buffer **buffer);

// Its first byte; NULL for NULL. The address stays the same until the buffer is freed or submitted.
void *dfly_buffer_data(const struct dfly_buffer *buffer);

// Bytes in it; 0 for NULL.
size_t dfly_buffer_length(const struct dfly_buffer *buffer);

// Bytes that it could have; 0 for NULL.
size_t dfly_buffer_capacity(const struct dfly_buffer *buffer);

// Makes it shorter, or longer up to its capacity.
dfly_status dfly_buffer_resize(struct dfly_buffer *buffer, size_t length);

// Gives the memory back. NULL is nothing.
void dfly_buffer_free(struct dfly_buffer *buffer);

// Sets every option to its default.
dfly_status dfly_channel_options_init(struct dfly_channel_options *options);

// Opens a channel to worker number `worker`, counted from 0. NULL for `options` means the defaults.
dfly_status dfly_channel_open(const struct dfly_lease *lease,
                          uint32_t worker,
                          const struct dfly_channel_options *options,
                          struct dfly_channel **channel);

// Resolves a function of code that the lease has. Every submitted call must have been answered.
dfly_status dfly_channel_load(struct dfly_channel *channel,
                          const struct dfly_code *code,
                          const char *symbol,
                          uint32_t form,
                          uint16_t *index);

// Calls a function and waits for its output, which is copied to `output`. `deadline_ms` limits its execution, 0 for no
// limit. When the output does not fit, the status is DFLY_OUTPUT_OVERFLOW, `output_length` says what it needs, and
// `dfly_channel_output` gives it, so that nothing needs to run twice. Every submitted call must have been answered.
dfly_status dfly_channel_call(struct dfly_channel *channel,
                          uint16_t function,
                          uint32_t deadline_ms,
                          const void *input,
                          size_t input_length,
                          void *output,
                          size_t output_capacity,
                          size_t *output_length);

// Calls a function on the first `input_length` bytes of a buffer and has its output written into another buffer, both of
// this channel. Over shared memory nothing is copied. `output_length` tells how much of the buffer was written.
dfly_status dfly_channel_call_into(struct dfly_channel *channel,
                               uint16_t function,
                               uint32_t deadline_ms,
                               const struct dfly_buffer *input,
                               size_t input_length,
                               struct dfly_buffer *output,
                               size_t *output_length);

// Sends a call without waiting; `sequence` tells its number. The input may be reused at once. At most as many calls as
// the ring has slots may be outstanding; beyond, the status is DFLY_REJECTED. A completion must be asked for, by
// `dfly_channel_poll` or `dfly_channel_wait`, for every call.
dfly_status dfly_channel_submit(struct dfly_channel *channel,
                            uint16_t function,
                            uint32_t deadline_ms,
                            const void *input,
                            size_t input_length,
                            uint32_t *sequence);

// As `dfly_channel_submit`, without a copy: the buffer belongs to the call from now on, whatever the status.
dfly_status dfly_channel_submit_buffer(struct dfly_channel *channel,
                                   uint16_t function,
                                   uint32_t deadline_ms,
                                   struct dfly_buffer *input,
                                   size_t input_length,
                                   uint32_t *sequence);

// The next completion, in the order of submission, if it is here (`came`). A call that failed is a completion with a
// status of its own; the status of this function speaks of the channel.
dfly_status dfly_channel_poll(struct dfly_channel *channel, struct dfly_completion *completion, bool *came);

// Waits for the next completion, `timeout_ms` at most (DFLY_TIMED_OUT); DFLY_FOR_EVER for as long as it takes.
dfly_status dfly_channel_wait(struct dfly_channel *channel, uint32_t timeout_ms, struct dfly_completion *completion);

// The output of the completion that was told of last, or the one that did not fit into the room of `dfly_channel_call`.
// Valid until the next function of this channel.
dfly_status dfly_channel_output(struct dfly_channel *channel, const void **output, size_t *length);

// Frees the slot of the completion that was told of last. Every other function of the channel does so first by itself,
// except `dfly_channel_output`.
dfly_status dfly_channel_done(struct dfly_channel *channel);

// Ends the submitted call `sequence`, now or when it begins, by ending its worker; the channel ends with it.
dfly_status dfly_channel_cancel(struct dfly_channel *channel, uint32_t sequence);

// The transport that it uses: DFLY_TRANSPORT_SHM, _TCP, _TLS or _LIBFABRIC.
uint32_t dfly_channel_transport(const struct dfly_channel *channel);

// The name of that: `shm`, `tcp`, `tls`, or `libfabric:` with provider and domain. Valid as long as the channel; "" for NULL.
const char *dfly_channel_transport_name(const struct dfly_channel *channel);

// Process id of the worker on its host; 0 for NULL.
uint32_t dfly_channel_worker_pid(const struct dfly_channel *channel);

// Calls submitted and not yet answered; 0 for NULL.
uint32_t dfly_channel_outstanding(const struct dfly_channel *channel);

// Closes the channel. Buffers of it live on. NULL is nothing.
void dfly_channel_free(struct dfly_channel *channel);

// Sets every option to its default.
dfly_status dfly_pool_options_init(struct dfly_pool_options *options);

// Sets every option to its default.
dfly_status dfly_call_options_init(struct dfly_call_options *options);

// Opens a channel to every worker of a lease. NULL for `options` means the defaults.
dfly_status dfly_pool_open(const struct dfly_lease *lease, const struct dfly_pool_options *options, struct dfly_pool **pool);

// Makes a function of code that the lease has known to the pool. Workers load it at its first call, which fails if they
// cannot.
dfly_status dfly_pool_function(const struct dfly_pool *pool,
                           const struct dfly_code *code,
                           const char *symbol,
                           uint32_t form,
                           uint32_t *id);

// Sends a call, or queues it until a worker has room; `call` tells its number. The input may be reused at once. Its
// outcome is taken with `dfly_pool_wait`, or given up with `dfly_pool_forget`. NULL for `options` means the defaults.
dfly_status dfly_pool_submit(const struct dfly_pool *pool,
                         uint32_t function,
                         const void *input,
                         size_t input_length,
                         const struct dfly_call_options *options,
                         uint64_t *call);

// As `dfly_pool_submit`, with memory of `dfly_pool_buffer_alloc`, which is not copied if the call goes to the worker for
// which it was allocated. The buffer belongs to the call from now on, whatever the status.
dfly_status dfly_pool_submit_buffer(const struct dfly_pool *pool,
                                uint32_t function,
                                struct dfly_buffer *input,
                                size_t input_length,
                                const struct dfly_call_options *options,
                                uint64_t *call);

// As `dfly_pool_submit`, with a function of yours that is told of the end, once, by whoever drives the pool
// (`dfly_pool_drive`). `call` is NULL or tells the call's number, for `dfly_pool_cancel`.
dfly_status dfly_pool_submit_callback(const struct dfly_pool *pool,
                                  uint32_t function,
                                  const void *input,
                                  size_t input_length,
                                  const struct dfly_call_options *options,
                                  dfly_callback callback,
                                  void *user,
                                  uint64_t *call);

// Drives the calls until some with a callback have ended, `timeout_ms` at most, and runs their callbacks; `ended` tells
// how many, 0 when the time is over.
dfly_status dfly_pool_drive(const struct dfly_pool *pool, uint32_t timeout_ms, size_t *ended);

// Waits for the end of a call, `timeout_ms` at most (DFLY_TIMED_OUT: it goes on and can be waited for again), or for ever if
// that is negative. The status is the call's own; its output, if it has one, is handed over through `output`. The outcome
// of a call can be taken once.
dfly_status dfly_pool_wait(const struct dfly_pool *pool,
                       uint64_t call,
                       int64_t timeout_ms,
                       struct dfly_output **output);

// Calls a function and waits; the output is copied to `output`. When it does not fit, the status is DFLY_OUTPUT_OVERFLOW and
// `output_length` says what it needs.
dfly_status dfly_pool_call(const struct dfly_pool *pool,
                       uint32_t function,
                       const void *input,
                       size_t input_length,
                       const struct dfly_call_options *options,
                       void *output,
                       size_t output_capacity,
                       size_t *output_length);

// Whether a call has ended.
bool dfly_pool_is_done(const struct dfly_pool *pool, uint64_t call);

// Takes a call out of the queue, so that it ends as DFLY_CANCELLED; `cancelled` tells whether it was still there.
dfly_status dfly_pool_cancel(const struct dfly_pool *pool, uint64_t call, bool *cancelled);

// Ends a call even if it runs, by ending its worker. Calls behind it go elsewhere.
dfly_status dfly_pool_kill(const struct dfly_pool *pool, uint64_t call);

// Nobody will wait for this call.
dfly_status dfly_pool_forget(const struct dfly_pool *pool, uint64_t call);

// Calls that have not ended; 0 for NULL.
size_t dfly_pool_pending(const struct dfly_pool *pool);

// Allocates memory for an input, for the worker that has least to do; `worker` tells which, for `dfly_call_options`.
dfly_status dfly_pool_buffer_alloc(const struct dfly_pool *pool, size_t length, struct dfly_buffer **buffer, uint32_t *worker);

// The bytes of an output; NULL for NULL.
const void *dfly_output_data(const struct dfly_output *output);

// How many bytes an output has; 0 for NULL.
size_t dfly_output_length(const struct dfly_output *output);

// Gives an output's memory back. NULL is nothing.
void dfly_output_free(struct dfly_output *output);

// Closes the pool. Callbacks that were not called are told DFLY_CANCELLED. Outputs and buffers live on. NULL is nothing.
void dfly_pool_free(struct dfly_pool *pool);

// Gives some of a pool's workers away for so long at most, once what they were sent has ended, within `limit_ms`. The pool does
// without them until they are taken back. Isolated workers of `users` can use the delegation; NULL if no such ones shall.
dfly_status dfly_pool_delegate(const struct dfly_pool *pool,
                           uint32_t workers,
                           uint64_t duration_ms,
                           const struct dfly_lease *users,
                           uint64_t limit_ms,
                           struct dfly_delegation **delegation);

// Takes back what `dfly_pool_delegate` gave. Its channels end, and its workers serve the pool again.
dfly_status dfly_pool_take_back(const struct dfly_pool *pool, const struct dfly_delegation *delegation);

// A delegation as text, to be given to a function as its input. It is as good as a password. Valid as long as the delegation.
const char *dfly_delegation_text(const struct dfly_delegation *delegation);

// Reads the text of a delegation.
dfly_status dfly_delegation_read(const char *text, struct dfly_delegation **delegation);

// The workers of a delegation as a lease, which can neither be renewed nor released.
dfly_status dfly_delegation_open(const struct dfly_delegation *delegation, struct dfly_lease **lease);

// Frees the handle; what was delegated stays so. NULL is nothing.
void dfly_delegation_free(struct dfly_delegation *delegation);

// Sets every option to its default.
dfly_status dfly_group_options_init(struct dfly_group_options *options);

// Joins a group, and returns when all its ranks are there and connected. NULL for `options` means the group that the
// environment variable DAYFLY_GROUP names, which `dayfly run` sets for the programs that it starts; a process without it is
// a group of one. A process joins a group once; `dfly_group_dup` makes another of the same ranks.
dfly_status dfly_group_join(const struct dfly_group_options *options,
                        struct dfly_group **group);

// This rank, counted from 0; DFLY_NO_RANK for NULL.
uint32_t dfly_group_rank(const struct dfly_group *group);

// How many ranks there are; 0 for NULL.
uint32_t dfly_group_size(const struct dfly_group *group);

// Which rank of the group that was joined a rank of a part of it is.
dfly_status dfly_group_member(const struct dfly_group *group, uint32_t rank, uint32_t *member);

// Splits a group: all ranks that give the same colour are in one part, in the order of their keys, and of their ranks where
// those are equal. Who gives DFLY_NO_COLOR is in none, and gets NULL. All ranks must call it.
dfly_status dfly_group_split(const struct dfly_group *group,
                         uint32_t color,
                         int64_t key,
                         struct dfly_group **part);

// Another group of the same ranks, whose messages do not mix with this one's. All ranks must call it.
dfly_status dfly_group_dup(const struct dfly_group *group, struct dfly_group **copy);

// A group of the ranks that are left, on which they agree. All that are left must call it.
dfly_status dfly_group_shrink(const struct dfly_group *group, struct dfly_group **rest);

// Frees a group. With the last of its parts and requests this rank leaves: the others take that for the end of its work,
// while a process that ends without it is a lost rank to whoever still waits for it. NULL is nothing.
void dfly_group_free(struct dfly_group *group);

// Bytes of an element of a datatype; 0 if there is no such datatype.
size_t dfly_datatype_bytes(uint32_t datatype);

// Makes an operation of a function, and tells the number by which reductions know it in this process. All ranks must use
// the same function. It must be associative; `commutative` says whether the order of the ranks may be changed too. `user`
// is handed to it each time.
dfly_status dfly_operation_create(dfly_combine combine,
                              void *user,
                              bool commutative,
                              uint32_t *operation);

// Forgets an operation that `dfly_operation_create` made. Reductions that are under way still use it.
dfly_status dfly_operation_free(uint32_t operation);

// Waits until an operation is over, for as long as the group's operations may take (DFLY_TIMED_OUT). After an error the
// operation has ended. `message` tells what a receive got; NULL is nothing.
dfly_status dfly_request_wait(struct dfly_request *request, struct dfly_message *message);

// Waits for several operations, each of which must be over in the end; the first error ends it.
dfly_status dfly_request_wait_all(struct dfly_request *const *requests, size_t count);

// Moves what can be moved, and tells whether the operation is over (`over`).
dfly_status dfly_request_test(struct dfly_request *request, struct dfly_message *message, bool *over);

// Frees a request. An operation that is still under way is cancelled, after which its memory may be used again and holds
// anything; a collective that one rank cancels does not end on the others. NULL is nothing.
void dfly_request_free(struct dfly_request *request);

// Sends elements to a rank. Returns when they may be changed, which for many of them is when they have been received.
dfly_status dfly_group_send(const struct dfly_group *group,
                        const void *data,
                        size_t count,
                        uint32_t datatype,
                        uint32_t to,
                        uint32_t tag);

// Receives a message of at most so many elements, from one rank or DFLY_ANY_RANK, under one tag or DFLY_ANY_TAG; messages of
// one rank under one tag come in the order in which they were sent. A longer one is an error (DFLY_TRUNCATED). `message`
// tells what came; NULL is nothing.
dfly_status dfly_group_recv(const struct dfly_group *group,
                        void *into,
                        size_t count,
                        uint32_t datatype,
                        uint32_t from,
                        uint32_t tag,
                        struct dfly_message *message);

// Sends one message and receives another at the same time, so that ranks can do this in circles. What is sent may lie
// where it is received: it is copied first then.
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

// Waits until a message is here that a receive with these wishes would get, without receiving it.
dfly_status dfly_group_probe(const struct dfly_group *group, uint32_t from, uint32_t tag, struct dfly_message *message);

// As `dfly_group_probe`, for what is here now, if anything is (`came`).
dfly_status dfly_group_iprobe(const struct dfly_group *group,
                          uint32_t from,
                          uint32_t tag,
                          struct dfly_message *message,
                          bool *came);

// Starts to send. The elements must stay as they are until the request is over.
dfly_status dfly_group_isend(const struct dfly_group *group,
                         const void *data,
                         size_t count,
                         uint32_t datatype,
                         uint32_t to,
                         uint32_t tag,
                         struct dfly_request **request);

// Starts to receive. The memory must not be used until the request is over.
dfly_status dfly_group_irecv(const struct dfly_group *group,
                         void *into,
                         size_t count,
                         uint32_t datatype,
                         uint32_t from,
                         uint32_t tag,
                         struct dfly_request **request);

// Returns when all ranks have called it.
dfly_status dfly_group_barrier(const struct dfly_group *group, struct dfly_request **request);

// Gives everybody the root's elements.
dfly_status dfly_group_bcast(const struct dfly_group *group,
                         void *data,
                         size_t count,
                         uint32_t datatype,
                         uint32_t root,
                         struct dfly_request **request);

// Gives the root everybody's `count` elements, in the order of the ranks. `into` matters at the root only.
dfly_status dfly_group_gather(const struct dfly_group *group,
                          const void *own,
                          size_t count,
                          uint32_t datatype,
                          void *into,
                          uint32_t root,
                          struct dfly_request **request);

// As `dfly_group_gather`, of any number of elements from each rank: rank i's `counts[i]` elements come to element
// `displacements[i]` of `into`, or, if that is NULL, behind those of rank i - 1. `into`, `counts` and `displacements` matter
// at the root only.
dfly_status dfly_group_gatherv(const struct dfly_group *group,
                           const void *own,
                           size_t count,
                           uint32_t datatype,
                           void *into,
                           const size_t *counts,
                           const size_t *displacements,
                           uint32_t root,
                           struct dfly_request **request);

// Gives everybody its `count` elements of the root's. `all` matters at the root only.
dfly_status dfly_group_scatter(const struct dfly_group *group,
                           const void *all,
                           void *into,
                           size_t count,
                           uint32_t datatype,
                           uint32_t root,
                           struct dfly_request **request);

// As `dfly_group_scatter`, of any number of elements for each rank: rank i gets `counts[i]` elements from element
// `displacements[i]` of `all` on, or, if that is NULL, from behind those of rank i - 1. `all`, `counts` and `displacements`
// matter at the root only; `count` is what this rank gets.
dfly_status dfly_group_scatterv(const struct dfly_group *group,
                            const void *all,
                            const size_t *counts,
                            const size_t *displacements,
                            void *into,
                            size_t count,
                            uint32_t datatype,
                            uint32_t root,
                            struct dfly_request **request);

// Gives everybody everybody's `count` elements, in the order of the ranks.
dfly_status dfly_group_allgather(const struct dfly_group *group,
                             const void *own,
                             size_t count,
                             uint32_t datatype,
                             void *into,
                             struct dfly_request **request);

// As `dfly_group_allgather`, of any number of elements from each rank, as `dfly_group_gatherv` has it. All ranks must give the
// same `counts` and `displacements`.
dfly_status dfly_group_allgatherv(const struct dfly_group *group,
                              const void *own,
                              size_t count,
                              uint32_t datatype,
                              void *into,
                              const size_t *counts,
                              const size_t *displacements,
                              struct dfly_request **request);

// Sends everybody the `count` elements of `own` that have its number, and receives everybody's.
dfly_status dfly_group_alltoall(const struct dfly_group *group,
                            const void *own,
                            void *into,
                            size_t count,
                            uint32_t datatype,
                            struct dfly_request **request);

// As `dfly_group_alltoall`, of any number of elements: rank i is sent `sent[i]` elements from element `sent_displacements[i]` of
// `own` on, and its `received[i]` elements come to element `received_displacements[i]` of `into`. Displacements that are NULL
// put the blocks one behind the other.
dfly_status dfly_group_alltoallv(const struct dfly_group *group,
                             const void *own,
                             const size_t *sent,
                             const size_t *sent_displacements,
                             void *into,
                             const size_t *received,
                             const size_t *received_displacements,
                             uint32_t datatype,
                             struct dfly_request **request);

// Combines everybody's elements, for the root. `into` matters there only.
dfly_status dfly_group_reduce(const struct dfly_group *group,
                          const void *own,
                          void *into,
                          size_t count,
                          uint32_t datatype,
                          uint32_t operation,
                          uint32_t root,
                          struct dfly_request **request);

// Combines everybody's elements, for everybody.
dfly_status dfly_group_allreduce(const struct dfly_group *group,
                             const void *own,
                             void *into,
                             size_t count,
                             uint32_t datatype,
                             uint32_t operation,
                             struct dfly_request **request);

// Combines everybody's elements, and gives rank i `counts[i]` of the result. All ranks must give the same `counts`.
dfly_status dfly_group_reduce_scatter(const struct dfly_group *group,
                                  const void *own,
                                  void *into,
                                  const size_t *counts,
                                  uint32_t datatype,
                                  uint32_t operation,
                                  struct dfly_request **request);

// Combines the elements of the ranks up to this one.
dfly_status dfly_group_scan(const struct dfly_group *group,
                        const void *own,
                        void *into,
                        size_t count,
                        uint32_t datatype,
                        uint32_t operation,
                        struct dfly_request **request);

// Combines the elements of the ranks before this one. Rank 0's `into` is left alone.
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
