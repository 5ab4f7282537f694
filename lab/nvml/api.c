/* NVML's functions over the simulated host: what is asked most by nvidia-ml-py, with the real one's refusals. */
#define _DEFAULT_SOURCE
#include "host.h"
#include "nvml.h"

#include <pthread.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>
#include <unistd.h>

#define EXPORT __attribute__((visibility("default")))
enum { POLL_US = 100000 };

/* Every function on a device begins alike. */
#define DEVICE_OR_RETURN(device, pointer)                                                                              \
    do {                                                                                                               \
        nvmlReturn_t checked_ = check(device, pointer);                                                                \
        if (checked_ != NVML_SUCCESS)                                                                                  \
            return checked_;                                                                                           \
    } while (0)

/* Where a GPU lacks what older and virtual ones lack. */
#define SUPPORTED_OR_RETURN(device, pointer)                                                                           \
    do {                                                                                                               \
        DEVICE_OR_RETURN(device, pointer);                                                                             \
        if (state_read(gpu_of(device)).unsupported)                                                                    \
            return NVML_ERROR_NOT_SUPPORTED;                                                                           \
    } while (0)

static pthread_mutex_t init_lock = PTHREAD_MUTEX_INITIALIZER;
static unsigned init_count;
static struct host host;

static bool is_mig(const struct device *device) { return device->parent != NULL; }

static const struct device *gpu_of(const struct device *device) { return is_mig(device) ? device->parent : device; }

static bool known(const struct device *device) {
    for (unsigned gpu = 0; gpu < host.gpu_count; gpu++) {
        if (device == &host.gpus[gpu])
            return true;
        for (unsigned mig = 0; mig < host.gpus[gpu].mig_count; mig++)
            if (device == &host.mig[gpu][mig])
                return true;
    }
    return false;
}

static nvmlReturn_t check(const struct device *device, const void *pointer) {
    if (init_count == 0)
        return NVML_ERROR_UNINITIALIZED;
    if (pointer == NULL || !known(device))
        return NVML_ERROR_INVALID_ARGUMENT;
    struct state state = state_read(gpu_of(device));
    while (state.hanging) {
        usleep(POLL_US);
        state = state_read(gpu_of(device));
    }
    if (state.lost)
        return NVML_ERROR_GPU_IS_LOST;
    return is_mig(device) && !state.mig ? NVML_ERROR_INVALID_ARGUMENT : NVML_SUCCESS;
}

static nvmlReturn_t put_text(char *buffer, unsigned length, const char *text) {
    if (buffer == NULL)
        return NVML_ERROR_INVALID_ARGUMENT;
    if (strlen(text) >= length)
        return NVML_ERROR_INSUFFICIENT_SIZE;
    strcpy(buffer, text);
    return NVML_SUCCESS;
}

/* ---- the library ---- */

EXPORT nvmlReturn_t nvmlInitWithFlags(unsigned flags) {
    (void)flags;
    nvmlReturn_t result = NVML_SUCCESS;
    while (driver_hanging())
        usleep(POLL_US);
    pthread_mutex_lock(&init_lock);
    if (!driver_loaded())
        result = NVML_ERROR_DRIVER_NOT_LOADED;
    else if (driver_upgraded())
        result = NVML_ERROR_LIB_RM_VERSION_MISMATCH;
    else if (init_count == 0 && !host_read(&host))
        result = NVML_ERROR_UNKNOWN;
    else
        init_count++;
    pthread_mutex_unlock(&init_lock);
    return result;
}

EXPORT nvmlReturn_t nvmlInit_v2(void) { return nvmlInitWithFlags(0); }
EXPORT nvmlReturn_t nvmlInit(void) { return nvmlInitWithFlags(0); }

EXPORT nvmlReturn_t nvmlShutdown(void) {
    nvmlReturn_t result = NVML_SUCCESS;
    pthread_mutex_lock(&init_lock);
    if (init_count == 0)
        result = NVML_ERROR_UNINITIALIZED;
    else
        init_count--;
    pthread_mutex_unlock(&init_lock);
    return result;
}

EXPORT const char *nvmlErrorString(nvmlReturn_t result) {
    switch (result) {
    case NVML_SUCCESS:
        return "Success";
    case NVML_ERROR_UNINITIALIZED:
        return "Uninitialized";
    case NVML_ERROR_INVALID_ARGUMENT:
        return "Invalid Argument";
    case NVML_ERROR_NOT_SUPPORTED:
        return "Not Supported";
    case NVML_ERROR_NO_PERMISSION:
        return "Insufficient Permissions";
    case NVML_ERROR_NOT_FOUND:
        return "Not Found";
    case NVML_ERROR_INSUFFICIENT_SIZE:
        return "Insufficient Size";
    case NVML_ERROR_DRIVER_NOT_LOADED:
        return "Driver Not Loaded";
    case NVML_ERROR_GPU_IS_LOST:
        return "GPU is lost";
    case NVML_ERROR_OPERATING_SYSTEM:
        return "The operating system has blocked the request";
    case NVML_ERROR_LIB_RM_VERSION_MISMATCH:
        return "Driver/library version mismatch";
    case NVML_ERROR_IN_USE:
        return "In use by another client";
    case NVML_ERROR_ARGUMENT_VERSION_MISMATCH:
        return "The provided version is invalid/unsupported";
    case NVML_ERROR_UNKNOWN:
        break;
    }
    return "Unknown Error";
}

EXPORT nvmlReturn_t nvmlSystemGetDriverVersion(char *version, unsigned length) {
    return init_count == 0 ? NVML_ERROR_UNINITIALIZED : put_text(version, length, host.driver_version);
}

EXPORT nvmlReturn_t nvmlSystemGetNVMLVersion(char *version, unsigned length) {
    return init_count == 0 ? NVML_ERROR_UNINITIALIZED : put_text(version, length, host.nvml_version);
}

EXPORT nvmlReturn_t nvmlSystemGetCudaDriverVersion(int *version) {
    if (init_count == 0)
        return NVML_ERROR_UNINITIALIZED;
    if (version == NULL)
        return NVML_ERROR_INVALID_ARGUMENT;
    *version = host.cuda_version;
    return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlSystemGetCudaDriverVersion_v2(int *version) { return nvmlSystemGetCudaDriverVersion(version); }

EXPORT nvmlReturn_t nvmlSystemGetProcessName(unsigned pid, char *name, unsigned length) {
    char path[64], text[1024] = "";
    if (init_count == 0)
        return NVML_ERROR_UNINITIALIZED;
    snprintf(path, sizeof path, "/proc/%u/cmdline", pid);
    FILE *file = fopen(path, "re");
    if (file == NULL)
        return NVML_ERROR_NOT_FOUND;
    size_t read = fread(text, 1, sizeof text - 1, file);
    fclose(file);
    return read == 0 ? NVML_ERROR_NOT_FOUND : put_text(name, length, text);
}

/* ---- finding a device ---- */

EXPORT nvmlReturn_t nvmlDeviceGetCount_v2(unsigned *count) {
    if (init_count == 0)
        return NVML_ERROR_UNINITIALIZED;
    if (count == NULL)
        return NVML_ERROR_INVALID_ARGUMENT;
    /* a lost GPU keeps its index, so that its neighbours keep theirs */
    *count = host.gpu_count;
    return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceGetCount(unsigned *count) { return nvmlDeviceGetCount_v2(count); }

static nvmlReturn_t found(struct device *device, nvmlDevice_t *result) {
    DEVICE_OR_RETURN(device, result);
    *result = device;
    return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceGetHandleByIndex_v2(unsigned index, nvmlDevice_t *device) {
    if (init_count == 0)
        return NVML_ERROR_UNINITIALIZED;
    return index < host.gpu_count ? found(&host.gpus[index], device) : NVML_ERROR_INVALID_ARGUMENT;
}

EXPORT nvmlReturn_t nvmlDeviceGetHandleByIndex(unsigned index, nvmlDevice_t *device) {
    return nvmlDeviceGetHandleByIndex_v2(index, device);
}

EXPORT nvmlReturn_t nvmlDeviceGetHandleByUUID(const char *uuid, nvmlDevice_t *device) {
    if (init_count == 0)
        return NVML_ERROR_UNINITIALIZED;
    if (uuid == NULL)
        return NVML_ERROR_INVALID_ARGUMENT;
    for (unsigned gpu = 0; gpu < host.gpu_count; gpu++) {
        if (strcasecmp(uuid, host.gpus[gpu].uuid) == 0)
            return found(&host.gpus[gpu], device);
        for (unsigned mig = 0; mig < host.gpus[gpu].mig_count; mig++)
            if (strcasecmp(uuid, host.mig[gpu][mig].uuid) == 0)
                return found(&host.mig[gpu][mig], device);
    }
    return NVML_ERROR_NOT_FOUND;
}

EXPORT nvmlReturn_t nvmlDeviceGetHandleByPciBusId_v2(const char *address, nvmlDevice_t *device) {
    unsigned domain = 0, bus, slot;
    if (init_count == 0)
        return NVML_ERROR_UNINITIALIZED;
    if (address == NULL)
        return NVML_ERROR_INVALID_ARGUMENT;
    if (sscanf(address, "%x:%x:%x", &domain, &bus, &slot) != 3) {
        domain = 0;
        if (sscanf(address, "%x:%x", &bus, &slot) != 2)
            return NVML_ERROR_INVALID_ARGUMENT;
    }
    for (unsigned gpu = 0; gpu < host.gpu_count; gpu++) {
        struct device *candidate = &host.gpus[gpu];
        if (candidate->domain == domain && candidate->bus == bus && candidate->slot == slot)
            return found(candidate, device);
    }
    return NVML_ERROR_NOT_FOUND;
}

EXPORT nvmlReturn_t nvmlDeviceGetHandleByPciBusId(const char *address, nvmlDevice_t *device) {
    return nvmlDeviceGetHandleByPciBusId_v2(address, device);
}

/* ---- what a device is ---- */

EXPORT nvmlReturn_t nvmlDeviceGetName(nvmlDevice_t device, char *name, unsigned length) {
    DEVICE_OR_RETURN(device, name);
    return put_text(name, length, device->name);
}

EXPORT nvmlReturn_t nvmlDeviceGetUUID(nvmlDevice_t device, char *uuid, unsigned length) {
    DEVICE_OR_RETURN(device, uuid);
    return put_text(uuid, length, device->uuid);
}

EXPORT nvmlReturn_t nvmlDeviceGetIndex(nvmlDevice_t device, unsigned *index) {
    DEVICE_OR_RETURN(device, index);
    *index = device->index;
    return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceGetMinorNumber(nvmlDevice_t device, unsigned *minor) {
    DEVICE_OR_RETURN(device, minor);
    *minor = gpu_of(device)->index;
    return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceGetPciInfo_v3(nvmlDevice_t device, nvmlPciInfo_t *pci) {
    DEVICE_OR_RETURN(device, pci);
    const struct device *gpu = gpu_of(device);
    memset(pci, 0, sizeof *pci);
    pci->domain = gpu->domain;
    pci->bus = gpu->bus;
    pci->device = gpu->slot;
    pci->pciDeviceId = gpu->pci_device << 16 | 0x10de;
    snprintf(pci->busIdLegacy, sizeof pci->busIdLegacy, "%04X:%02X:%02X.0", gpu->domain & 0xffff, gpu->bus & 0xff,
             gpu->slot & 0xff);
    snprintf(pci->busId, sizeof pci->busId, "%08X:%02X:%02X.0", gpu->domain, gpu->bus, gpu->slot);
    return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceGetPciInfo_v2(nvmlDevice_t device, nvmlPciInfo_v2_t *pci) {
    nvmlPciInfo_t newer;
    DEVICE_OR_RETURN(device, pci);
    nvmlReturn_t result = nvmlDeviceGetPciInfo_v3(device, &newer);
    if (result == NVML_SUCCESS) {
        memset(pci, 0, sizeof *pci);
        memcpy(pci, &newer, offsetof(nvmlPciInfo_v2_t, reserved));
    }
    return result;
}

EXPORT nvmlReturn_t nvmlDeviceGetPciInfo(nvmlDevice_t device, nvmlPciInfo_v2_t *pci) {
    return nvmlDeviceGetPciInfo_v2(device, pci);
}

EXPORT nvmlReturn_t nvmlDeviceGetCudaComputeCapability(nvmlDevice_t device, int *major, int *minor) {
    DEVICE_OR_RETURN(device, major);
    if (minor == NULL)
        return NVML_ERROR_INVALID_ARGUMENT;
    *major = (int)gpu_of(device)->capability_major;
    *minor = (int)gpu_of(device)->capability_minor;
    return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceGetArchitecture(nvmlDevice_t device, unsigned *architecture) {
    DEVICE_OR_RETURN(device, architecture);
    *architecture = gpu_of(device)->architecture;
    return NVML_SUCCESS;
}

/* ---- processes and memory ---- */

static unsigned processes_of(const struct device *device, bool clients_only, struct process *rows) {
    unsigned kept = 0, all = processes_read(gpu_of(device), rows);
    for (unsigned row = 0; row < all; row++)
        if ((!clients_only || rows[row].mps_client) &&
            (!is_mig(device) || rows[row].gpu_instance == (int)device->gpu_instance))
            rows[kept++] = rows[row];
    return kept;
}

static nvmlReturn_t list(nvmlDevice_t device, unsigned *count, void *infos, bool clients_only, bool version_1) {
    struct process rows[MAX_PROCESSES];
    SUPPORTED_OR_RETURN(device, count);
    unsigned room = *count;
    *count = processes_of(device, clients_only, rows);
    if (*count > room || (*count > 0 && infos == NULL))
        return NVML_ERROR_INSUFFICIENT_SIZE;
    for (unsigned row = 0; row < *count; row++) {
        unsigned long long bytes = rows[row].memory_mib << 20;
        if (version_1) {
            ((nvmlProcessInfo_v1_t *)infos)[row] = (nvmlProcessInfo_v1_t){rows[row].pid, bytes};
        } else {
            unsigned instance = (unsigned)rows[row].gpu_instance;
            ((nvmlProcessInfo_v2_t *)infos)[row] =
                (nvmlProcessInfo_v2_t){rows[row].pid, bytes, instance, rows[row].gpu_instance < 0 ? instance : 0};
        }
    }
    return NVML_SUCCESS;
}

#define PROCESS_LIST(function, clients_only)                                                                           \
    EXPORT nvmlReturn_t function(nvmlDevice_t device, unsigned *count, nvmlProcessInfo_v1_t *infos) {                  \
        return list(device, count, infos, clients_only, true);                                                         \
    }                                                                                                                  \
    EXPORT nvmlReturn_t function##_v2(nvmlDevice_t device, unsigned *count, nvmlProcessInfo_v2_t *infos) {             \
        return list(device, count, infos, clients_only, false);                                                        \
    }                                                                                                                  \
    EXPORT nvmlReturn_t function##_v3(nvmlDevice_t device, unsigned *count, nvmlProcessInfo_v2_t *infos) {             \
        return list(device, count, infos, clients_only, false);                                                        \
    }

PROCESS_LIST(nvmlDeviceGetComputeRunningProcesses, false)
PROCESS_LIST(nvmlDeviceGetMPSComputeRunningProcesses, true)

EXPORT nvmlReturn_t nvmlDeviceGetMemoryInfo(nvmlDevice_t device, nvmlMemory_t *memory) {
    struct process rows[MAX_PROCESSES];
    DEVICE_OR_RETURN(device, memory);
    if (state_read(gpu_of(device)).no_memory)
        return NVML_ERROR_NOT_SUPPORTED;
    unsigned long long used_mib = 0;
    for (unsigned row = processes_of(device, false, rows); row-- > 0;)
        used_mib += rows[row].memory_mib;
    if (used_mib > device->memory_mib)
        used_mib = device->memory_mib;
    memory->total = device->memory_mib << 20;
    memory->used = used_mib << 20;
    memory->free = memory->total - memory->used;
    return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceGetMemoryInfo_v2(nvmlDevice_t device, nvmlMemory_v2_t *memory) {
    nvmlMemory_t older;
    DEVICE_OR_RETURN(device, memory);
    if (memory->version != (sizeof *memory | 2u << 24))
        return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
    nvmlReturn_t result = nvmlDeviceGetMemoryInfo(device, &older);
    if (result == NVML_SUCCESS) {
        memory->total = older.total;
        memory->free = older.free;
        memory->used = older.used;
        memory->reserved = 0;
    }
    return result;
}

EXPORT nvmlReturn_t nvmlDeviceGetAttributes_v2(nvmlDevice_t device, nvmlDeviceAttributes_t *attributes) {
    DEVICE_OR_RETURN(device, attributes);
    *attributes = (nvmlDeviceAttributes_t){.multiprocessorCount = device->multiprocessors,
                                           .gpuInstanceSliceCount = device->slices,
                                           .computeInstanceSliceCount = device->slices,
                                           .memorySizeMB = device->memory_mib};
    return NVML_SUCCESS;
}

/* ---- modes ---- */

static void change_compute_mode(struct state *state, unsigned mode) { state->compute_mode = mode; }
static void change_persistence(struct state *state, unsigned on) { state->persistence = on != 0; }
static void change_mig_pending(struct state *state, unsigned on) { state->mig_pending = on != 0; }

static void change_mig(struct state *state, unsigned on) {
    state->mig = state->mig_pending = on != 0;
    if (on)
        state->compute_mode = NVML_COMPUTEMODE_DEFAULT;
}

static nvmlReturn_t changed(const struct device *gpu, void (*change)(struct state *, unsigned), unsigned value) {
    if (geteuid() != 0)
        return NVML_ERROR_NO_PERMISSION;
    return state_change(gpu, change, value) ? NVML_SUCCESS : NVML_ERROR_OPERATING_SYSTEM;
}

EXPORT nvmlReturn_t nvmlDeviceGetComputeMode(nvmlDevice_t device, unsigned *mode) {
    SUPPORTED_OR_RETURN(device, mode);
    *mode = state_read(gpu_of(device)).compute_mode;
    return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceSetComputeMode(nvmlDevice_t device, unsigned mode) {
    SUPPORTED_OR_RETURN(device, device);
    if (mode > NVML_COMPUTEMODE_EXCLUSIVE_PROCESS)
        return NVML_ERROR_INVALID_ARGUMENT;
    /* nvml.h: on MIG-enabled GPUs the mode is DEFAULT and changing it is not supported; 1 was exclusive thread */
    if (is_mig(device) || state_read(device).mig || mode == 1)
        return NVML_ERROR_NOT_SUPPORTED;
    return changed(device, change_compute_mode, mode);
}

EXPORT nvmlReturn_t nvmlDeviceGetPersistenceMode(nvmlDevice_t device, unsigned *mode) {
    SUPPORTED_OR_RETURN(device, mode);
    *mode = state_read(gpu_of(device)).persistence;
    return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceSetPersistenceMode(nvmlDevice_t device, unsigned mode) {
    SUPPORTED_OR_RETURN(device, device);
    if (mode > 1)
        return NVML_ERROR_INVALID_ARGUMENT;
    return is_mig(device) ? NVML_ERROR_NOT_SUPPORTED : changed(device, change_persistence, mode);
}

/* ---- MIG ---- */

EXPORT nvmlReturn_t nvmlDeviceIsMigDeviceHandle(nvmlDevice_t device, unsigned *answer) {
    DEVICE_OR_RETURN(device, answer);
    *answer = is_mig(device);
    return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceGetMigMode(nvmlDevice_t device, unsigned *current, unsigned *pending) {
    SUPPORTED_OR_RETURN(device, current);
    if (pending == NULL)
        return NVML_ERROR_INVALID_ARGUMENT;
    if (is_mig(device) || !device->mig_capable)
        return NVML_ERROR_NOT_SUPPORTED;
    struct state state = state_read(device);
    *current = state.mig;
    *pending = state.mig_pending;
    return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceSetMigMode(nvmlDevice_t device, unsigned mode, nvmlReturn_t *activation) {
    struct process rows[MAX_PROCESSES];
    SUPPORTED_OR_RETURN(device, activation);
    if (mode > 1)
        return NVML_ERROR_INVALID_ARGUMENT;
    if (is_mig(device) || !device->mig_capable)
        return NVML_ERROR_NOT_SUPPORTED;
    bool busy = processes_read(device, rows) > 0;
    *activation = busy ? NVML_ERROR_IN_USE : NVML_SUCCESS;
    return changed(device, busy ? change_mig_pending : change_mig, mode);
}

EXPORT nvmlReturn_t nvmlDeviceGetMaxMigDeviceCount(nvmlDevice_t device, unsigned *count) {
    DEVICE_OR_RETURN(device, count);
    *count = !is_mig(device) && device->mig_capable ? MAX_MIG : 0;
    return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceGetMigDeviceHandleByIndex(nvmlDevice_t device, unsigned index, nvmlDevice_t *mig) {
    DEVICE_OR_RETURN(device, mig);
    if (is_mig(device) || index >= MAX_MIG)
        return NVML_ERROR_INVALID_ARGUMENT;
    if (!device->mig_capable)
        return NVML_ERROR_NOT_SUPPORTED;
    if (!state_read(device).mig || index >= device->mig_count)
        return NVML_ERROR_NOT_FOUND;
    *mig = &device->mig[index];
    return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceGetDeviceHandleFromMigDeviceHandle(nvmlDevice_t mig, nvmlDevice_t *device) {
    DEVICE_OR_RETURN(mig, device);
    if (!is_mig(mig))
        return NVML_ERROR_INVALID_ARGUMENT;
    *device = mig->parent;
    return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceGetGpuInstanceId(nvmlDevice_t device, unsigned *instance) {
    DEVICE_OR_RETURN(device, instance);
    if (!is_mig(device))
        return NVML_ERROR_NOT_SUPPORTED;
    *instance = device->gpu_instance;
    return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceGetComputeInstanceId(nvmlDevice_t device, unsigned *instance) {
    DEVICE_OR_RETURN(device, instance);
    if (!is_mig(device))
        return NVML_ERROR_NOT_SUPPORTED;
    *instance = 0;
    return NVML_SUCCESS;
}
