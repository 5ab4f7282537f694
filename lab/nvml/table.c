/* The host's GPUs as the lab wrote them: key=value, one [section] a GPU, in the order of the PCI bus. */
#define _DEFAULT_SOURCE
#include "host.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void copy(char *to, const char *text) { snprintf(to, TEXT, "%.*s", TEXT - 1, text); }

/* mig=UUID:name:MiB:multiprocessors:slices */
static void add_mig(struct host *host, struct device *gpu, const char *row) {
    if (gpu->mig_count == MAX_MIG)
        return;
    struct device *mig = &host->mig[gpu->index][gpu->mig_count];
    if (sscanf(row, "%95[^:]:%95[^:]:%llu:%u:%u", mig->uuid, mig->name, &mig->memory_mib, &mig->multiprocessors,
               &mig->slices) != 5)
        return;
    mig->parent = gpu;
    mig->index = gpu->mig_count;
    mig->gpu_instance = ++gpu->mig_count;
    gpu->mig_at_boot = true;
}

static void set(struct host *host, struct device *gpu, const char *key, const char *value) {
    if (gpu == NULL) {
        if (strcmp(key, "driver_version") == 0)
            copy(host->driver_version, value);
        else if (strcmp(key, "nvml_version") == 0)
            copy(host->nvml_version, value);
        else if (strcmp(key, "cuda_version") == 0)
            host->cuda_version = atoi(value);
    } else if (strcmp(key, "name") == 0)
        copy(gpu->name, value);
    else if (strcmp(key, "pci") == 0)
        sscanf(value, "%x:%x:%x", &gpu->domain, &gpu->bus, &gpu->slot);
    else if (strcmp(key, "pci_device") == 0)
        sscanf(value, "%x", &gpu->pci_device);
    else if (strcmp(key, "memory_mib") == 0)
        sscanf(value, "%llu", &gpu->memory_mib);
    else if (strcmp(key, "multiprocessors") == 0)
        sscanf(value, "%u", &gpu->multiprocessors);
    else if (strcmp(key, "compute_capability") == 0)
        sscanf(value, "%u.%u", &gpu->capability_major, &gpu->capability_minor);
    else if (strcmp(key, "architecture") == 0)
        sscanf(value, "%u", &gpu->architecture);
    else if (strcmp(key, "mig_capable") == 0)
        gpu->mig_capable = strcmp(value, "1") == 0;
    else if (strcmp(key, "mig") == 0)
        add_mig(host, gpu, value);
}

bool host_read(struct host *host) {
    const char *etc = getenv("MPS_LAB_NVML_ETC");
    char path[4096], line[512];
    snprintf(path, sizeof path, "%s/gpus", etc != NULL ? etc : "/etc/mps-lab");
    FILE *file = fopen(path, "re");
    if (file == NULL)
        return false;
    memset(host, 0, sizeof *host);
    struct device *gpu = NULL;
    while (fgets(line, sizeof line, file) != NULL) {
        line[strcspn(line, "\n")] = '\0';
        char *equals = strchr(line, '=');
        if (line[0] == '[' && host->gpu_count < MAX_GPUS) {
            gpu = &host->gpus[host->gpu_count];
            gpu->index = host->gpu_count;
            gpu->mig = host->mig[host->gpu_count++];
            line[strcspn(line, "]")] = '\0';
            copy(gpu->uuid, line + 1);
        } else if (line[0] != '#' && equals != NULL) {
            *equals = '\0';
            set(host, gpu, line, equals + 1);
        }
    }
    fclose(file);
    return true;
}
