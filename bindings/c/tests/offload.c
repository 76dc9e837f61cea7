/* What the planner of dayfly.h promises. It needs no worker. */
#include "check.h"

enum { FUNCTION = 7, BYTES = 1000, WORKERS = 2 };

int main(void) {
    dfly_offload *offload;
    dfly_split split;
    dfly_offload_times times;
    uint64_t by_worker[WORKERS];

    OK(dfly_offload_new(&offload));
    OK(dfly_offload_split(offload, FUNCTION, BYTES, 100, 1, &split, NULL, 0));
    TRUE(split.local == 100 && split.remote == 0 && split.reason == DFLY_SPLIT_NO_WORKERS);

    OK(dfly_offload_set_workers(offload, WORKERS));
    OK(dfly_offload_split(offload, FUNCTION, BYTES, 100, 1, &split, NULL, 0));
    TRUE(split.reason == DFLY_SPLIT_UNKNOWN && split.remote == split.probes && split.probes > 0);
    OK(dfly_offload_estimate(offload, FUNCTION, BYTES, 0, &times));
    TRUE(times.local < 0 && times.remote < 0 && times.latency < 0);

    OK(dfly_offload_record_local(offload, FUNCTION, BYTES, 10, 0.01));
    for (int start = 1; start < 20; start++) {
        OK(dfly_offload_record_remote(offload, FUNCTION, BYTES, DFLY_ANY_WORKER, start, start + 1e-6, start + 0.0011,
                                      true));
    }
    OK(dfly_offload_split(offload, FUNCTION, BYTES, 300, 1, &split, by_worker, WORKERS));
    TRUE(split.reason == DFLY_SPLIT_DIVIDED && split.local + split.remote == 300);
    TRUE(split.remote > 180 && split.remote < 210);
    TRUE(by_worker[0] + by_worker[1] == split.remote && split.remote_seconds <= split.local_seconds);
    OK(dfly_offload_estimate(offload, FUNCTION, BYTES, 1, &times));
    TRUE(times.local > 0.0009 && times.local < 0.0011 && times.latency >= 0 && times.overhead > 0);

    IS(dfly_offload_split(offload, FUNCTION, BYTES, 300, 1, &split, by_worker, 1), DFLY_INVALID_REQUEST);
    IS(dfly_offload_split(NULL, FUNCTION, BYTES, 300, 1, &split, NULL, 0), DFLY_INVALID_REQUEST);
    IS(dfly_offload_split(offload, FUNCTION, BYTES, 300, 1, NULL, NULL, 0), DFLY_INVALID_REQUEST);
    IS(dfly_offload_new(NULL), DFLY_INVALID_REQUEST);
    dfly_offload_free(offload);
    dfly_offload_free(NULL);
    puts("all held");
    return 0;
}
