/* What this host has (read once, at nvmlInit) and how it stands now (read at every call). */
#ifndef MPS_LAB_HOST_H
#define MPS_LAB_HOST_H

#include <stdbool.h>

enum { MAX_GPUS = 32, MAX_MIG = 7, MAX_PROCESSES = 256, TEXT = 96, NO_INSTANCE = -1 };

struct device {
    char uuid[TEXT];
    char name[TEXT];
    unsigned index;
    unsigned long long memory_mib;
    unsigned multiprocessors;
    /* of a MIG device */
    struct device *parent;
    unsigned gpu_instance, slices;
    /* of a GPU */
    unsigned domain, bus, slot, pci_device;
    unsigned capability_major, capability_minor, architecture;
    bool mig_capable, mig_at_boot;
    unsigned mig_count;
    struct device *mig;
};

struct host {
    char driver_version[TEXT];
    char nvml_version[TEXT];
    int cuda_version;
    unsigned gpu_count;
    struct device gpus[MAX_GPUS];
    struct device mig[MAX_GPUS][MAX_MIG];
};

/* table.c: reads $MPS_LAB_NVML_ETC/gpus, by default /etc/mps-lab/gpus. */
bool host_read(struct host *host);

struct state {
    unsigned compute_mode;
    bool persistence, mig, mig_pending, lost;
    /* planted by the lab: lacks what older and virtual GPUs lack; never answers; has no memory of its own to tell */
    bool unsupported, hanging, no_memory;
};

struct process {
    unsigned pid;
    unsigned long long memory_mib;
    bool mps_client;
    int gpu_instance;
};

/* state.c: lies in $MPS_LAB_NVML_RUN, by default /run/mps-lab, so that a reboot forgets it. */
bool driver_loaded(void);
/* Planted by the lab: the libraries were upgraded under a loaded driver; nothing answers while this holds. */
bool driver_upgraded(void);
bool driver_hanging(void);
struct state state_read(const struct device *gpu);
/* Changes a GPU's state as one step for all processes; false if it could not be written. */
bool state_change(const struct device *gpu, void (*change)(struct state *, unsigned), unsigned value);
/* The live processes that were placed on the GPU; at most MAX_PROCESSES. */
unsigned processes_read(const struct device *gpu, struct process *rows);

#endif
