/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The control file: what the processes of one simulated machine agree on. It lies beside the
 * backing files in the machine's directory, is mapped by every process, and holds the capacity of
 * each device, one slot per allocation, and one entry per attached process.
 *
 * What is true is decided by locks of the kernel, not by this file: a backing file's allocation
 * lives exactly as long as its open-file-description lock, a process as long as the lock on its
 * byte of this file. The counters here only say where to look, so that neither creating nor
 * releasing scans anything.
 *
 *   slot.holders   attached processes that hold the allocation (handle or mapping); exact, because
 * each process's holdings are a bitmap here that survives its death slot.unsure    no attached
 * process holds it, but an exported descriptor may: test the lock
 *
 * The mutex is robust: when a process dies inside it, the next one rebuilds the counters from the
 * bitmaps.
 */
#ifndef GPUMEM_SIMCUDA_CONTROL_H
#define GPUMEM_SIMCUDA_CONTROL_H

#include "libclient/simcuda/sim.h"

#define CONTROL_SLOTS     131072u /* allocations alive at once on one machine */
#define CONTROL_PROCESSES 4096u
#define CONTROL_BUCKETS   65536u
#define CONTROL_WORDS     (CONTROL_SLOTS / 64)

#define SLOT_PREFIX "frame-" /* of the backing files' names */

enum slot_state {
        SLOT_FREE = 0,
        SLOT_CREATING, /* charged; the file may or may not exist, or be locked, yet */
        SLOT_LIVE,     /* file exists and is (or was, if unsure) locked */
        SLOT_FREEING,  /* nobody holds it; charged until its file is gone */
};

struct slot {
        uint64_t bytes;
        uint64_t inode;   /* LIVE: of the backing file */
        uint32_t next;    /* FREE: next free slot; LIVE: next in the inode's bucket; 0 ends */
        uint32_t owner;   /* CREATING, FREEING: the process at work, whose death ends that work */
        uint32_t holders; /* attached processes holding it */
        uint8_t state;    /* enum slot_state */
        uint8_t device;
        uint8_t exported; /* a descriptor was given out at least once */
        uint8_t unsure;
        uint32_t handle_types; /* as asked at creation */
        uint8_t rdma;          /* gpuDirectRDMACapable, as asked at creation */
        uint8_t padding[3];
};

struct control {
        uint64_t magic;
        uint64_t layout; /* size of this structure: programs of different builds do not mix */
        pthread_mutex_t lock;
        uint32_t devices;
        uint32_t slots_used; /* slots 1 .. slots_used have been in use at some time */
        uint32_t free_slot;  /* first free one below that, 0: none */
        uint32_t unsure;     /* number of slots with unsure set */
        uint64_t granularity;
        uint64_t memory_bytes; /* capacity of each device */
        uint64_t used_bytes[SIM_DEVICES_MAX];
        uint8_t identity[11]; /* random; of this directory's machine for as long as it is there */
        uint8_t temporary;    /* the directory was made by us: the last process removes it */
        uint8_t sparse;       /* memory is not committed at creation */
        _Atomic(uint32_t) fault_generation; /* grows when the file "fault" was replaced */
        _Atomic(uint32_t) lost;             /* bit mask of lost devices */
        _Atomic(uint64_t) fault_hits;
        int lost_error[SIM_DEVICES_MAX]; /* CUresult, of lost devices */
        /* When somebody first saw that a process is dead, while its memory is late (profile.h). */
        uint64_t dead_since_ns[CONTROL_PROCESSES];
        uint8_t attached[CONTROL_PROCESSES]; /* 1: entry in use; alive if its byte is locked */
        uint32_t bucket[CONTROL_BUCKETS];    /* inode -> slot */
        struct slot slot[CONTROL_SLOTS];     /* slot 0 is never used */
        uint64_t held[CONTROL_PROCESSES][CONTROL_WORDS];
};

/* This process's connection to the machine. */
struct machine {
        int directory;          /* descriptor */
        int file;               /* the control file; its description carries this process's lock */
        uint64_t device_number; /* st_dev of the directory */
        uint32_t process;       /* our entry */
        unsigned int mode;      /* for files made here: as the directory allows */
        struct control *control;
};
extern struct machine machine;

/*
 * Attaches to the machine of config->directory, making or restarting it when nobody else is there,
 * and replaces devices, memory and granularity in `config` by those of the machine. With others
 * attached, a configuration that says otherwise is CUDA_ERROR_SYSTEM_DRIVER_MISMATCH.
 */
CUresult control_attach(struct sim_config *config);
/* Gives this process's entry back when it could not start; it holds nothing. */
void control_detach(void);
/* At exit, when this process holds nothing any more: if nobody else is attached, nothing is alive,
 * and the directory was made by a process that attached, it is removed. */
void control_leave(const struct sim_config *config);
/* In a forked child: lets go of what would keep the parent's entry alive. */
void control_after_fork(void);

/* CUDA_SUCCESS while the device is there. */
CUresult control_lost_error(int device);

/* Both robust: see above. */
void control_lock(void);
void control_unlock(void);

/* All with the lock held. */
uint32_t control_take_slot(void); /* 0: none left */
void control_free_slot(uint32_t slot);
uint32_t control_find(uint64_t inode); /* 0: unknown */
void control_publish(uint32_t slot, uint64_t inode);
void control_unpublish(uint32_t slot);
void control_hold(uint32_t slot);
void control_let_go(uint32_t slot); /* may leave the slot with no holder: see store.c */
void control_set_unsure(uint32_t slot, bool unsure);

void slot_name(uint32_t slot, char name[24]);
/* Whether any descriptor, message or mapping anywhere still keeps the backing file. Lock held. */
bool slot_is_kept(uint32_t slot);

/*
 * Without the lock: gives back what dead processes held and what only a descriptor kept that is now
 * gone. Costs one test per attached process and per unsure slot; off the hot paths.
 */
void control_reclaim(void);

#endif
