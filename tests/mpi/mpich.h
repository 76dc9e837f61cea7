/* Facts of MPICH's binary interface that the C programs here need: handles, constants, layouts. */
#ifndef MPICH_FACTS_H
#define MPICH_FACTS_H

typedef int MPI_Comm;
typedef int MPI_Datatype;
typedef int MPI_Op;
typedef int MPI_Request;
typedef int MPI_Errhandler;
typedef int MPI_Info;
typedef int MPI_Session;
typedef long MPI_Aint;
typedef long MPI_Count;

typedef struct {
    int count_lo;
    int count_hi_and_cancelled;
    int MPI_SOURCE;
    int MPI_TAG;
    int MPI_ERROR;
} MPI_Status;

#define MPI_COMM_WORLD ((MPI_Comm)0x44000000)
#define MPI_COMM_SELF ((MPI_Comm)0x44000001)
#define MPI_COMM_NULL ((MPI_Comm)0x04000000)
#define MPI_INFO_NULL ((MPI_Info)0x1c000000)
#define MPI_APPNUM 0x6440000d
#define MPI_UNIVERSE_SIZE 0x64400009
#define MPI_INT ((MPI_Datatype)0x4c000405)
#define MPI_DOUBLE ((MPI_Datatype)0x4c00080b)
#define MPI_BYTE ((MPI_Datatype)0x4c00010d)
#define MPI_SUM ((MPI_Op)0x58000003)
#define MPI_MAX ((MPI_Op)0x58000001)
#define MPI_INFO_NULL ((MPI_Info)0x1c000000)
#define MPI_REQUEST_NULL ((MPI_Request)0x2c000000)
#define MPI_DATATYPE_NULL ((MPI_Datatype)0x0c000000)
#define MPI_DOUBLE_INT ((MPI_Datatype)0x8c000001)
#define MPI_COMBINER_F90_REAL 15
#define MPI_ERRORS_ARE_FATAL ((MPI_Errhandler)0x54000000)
#define MPI_ERRORS_RETURN ((MPI_Errhandler)0x54000001)
#define MPI_ANY_SOURCE (-2)
#define MPI_ANY_TAG (-1)
#define MPI_PROC_NULL (-1)
#define MPI_IN_PLACE ((void *)-1)
#define MPI_STATUS_IGNORE ((MPI_Status *)1)
#define MPI_STATUSES_IGNORE ((MPI_Status *)1)
#define MPI_SUCCESS 0
#define MPI_ERR_BUFFER 1
#define MPI_ERR_COUNT 2
#define MPI_ERR_TYPE 3
#define MPI_ERR_TAG 4
#define MPI_ERR_RANK 6
#define MPI_ERR_ARG 12
#define MPI_ERR_REQUEST 19
#define MPIX_ERR_TIMEOUT 107
#define MPI_ERR_TRUNCATE 14
#define MPI_THREAD_MULTIPLE 3
#define MPI_MAX_ERROR_STRING 512

int MPI_Init(int *, char ***);
int MPI_Init_thread(int *, char ***, int, int *);
int MPI_Finalize(void);
int MPI_Comm_rank(MPI_Comm, int *);
int MPI_Comm_size(MPI_Comm, int *);
int MPI_Comm_dup(MPI_Comm, MPI_Comm *);
int MPI_Comm_split(MPI_Comm, int, int, MPI_Comm *);
int MPI_Comm_free(MPI_Comm *);
int MPI_Comm_set_errhandler(MPI_Comm, MPI_Errhandler);
int MPI_Error_class(int, int *);
int MPI_Error_string(int, char *, int *);
int MPI_Send(const void *, int, MPI_Datatype, int, int, MPI_Comm);
int PMPI_Send(const void *, int, MPI_Datatype, int, int, MPI_Comm);
int MPI_Ssend(const void *, int, MPI_Datatype, int, int, MPI_Comm);
int MPI_Bsend(const void *, int, MPI_Datatype, int, int, MPI_Comm);
int MPI_Recv(void *, int, MPI_Datatype, int, int, MPI_Comm, MPI_Status *);
int MPI_Isend(const void *, int, MPI_Datatype, int, int, MPI_Comm, MPI_Request *);
int MPI_Issend(const void *, int, MPI_Datatype, int, int, MPI_Comm, MPI_Request *);
int MPI_Irecv(void *, int, MPI_Datatype, int, int, MPI_Comm, MPI_Request *);
int MPI_Wait(MPI_Request *, MPI_Status *);
int MPI_Waitall(int, MPI_Request *, MPI_Status *);
int MPI_Test(MPI_Request *, int *, MPI_Status *);
int MPI_Iprobe(int, int, MPI_Comm, int *, MPI_Status *);
int MPI_Get_count(const MPI_Status *, MPI_Datatype, int *);
int MPI_Ibarrier(MPI_Comm, MPI_Request *);
int MPI_Barrier(MPI_Comm);
int MPI_Bcast(void *, int, MPI_Datatype, int, MPI_Comm);
int MPI_Allreduce(const void *, void *, int, MPI_Datatype, MPI_Op, MPI_Comm);
int MPI_Type_vector(int, int, int, MPI_Datatype, MPI_Datatype *);
int MPI_Type_commit(MPI_Datatype *);
int MPI_Type_free(MPI_Datatype *);
int MPI_Buffer_attach(void *, int);
int MPI_Buffer_detach(void *, int *);
double MPI_Wtime(void);
int MPI_Type_create_resized(MPI_Datatype, MPI_Aint, MPI_Aint, MPI_Datatype *);
int MPI_Type_create_f90_real(int, int, MPI_Datatype *);
int MPI_Type_create_f90_integer(int, MPI_Datatype *);
int MPI_Type_size(MPI_Datatype, int *);
int MPI_Type_get_envelope(MPI_Datatype, int *, int *, int *, int *);
int MPI_Type_get_contents(MPI_Datatype, int, int, int, int *, MPI_Aint *, MPI_Datatype *);
int MPI_Type_get_value_index(MPI_Datatype, MPI_Datatype, MPI_Datatype *);
int MPI_Start(MPI_Request *);
int MPI_Cancel(MPI_Request *);
int MPI_Request_free(MPI_Request *);
int MPI_Request_get_status_all(int, const MPI_Request *, int *, MPI_Status *);
int MPI_Request_get_status_any(int, const MPI_Request *, int *, int *, MPI_Status *);
int MPI_Request_get_status_some(int, const MPI_Request *, int *, int *, MPI_Status *);
int MPI_Psend_init(const void *, int, MPI_Count, MPI_Datatype, int, int, MPI_Comm, MPI_Info, MPI_Request *);
int MPI_Precv_init(void *, int, MPI_Count, MPI_Datatype, int, int, MPI_Comm, MPI_Info, MPI_Request *);
int MPI_Pready(int, MPI_Request);
int MPI_Pready_range(int, int, MPI_Request);
int MPI_Pready_list(int, const int *, MPI_Request);
int MPI_Parrived(MPI_Request, int, int *);
int MPI_Buffer_iflush(MPI_Request *);
int MPI_Comm_attach_buffer(MPI_Comm, void *, int);
int MPI_Comm_detach_buffer(MPI_Comm, void *, int *);
int MPI_Comm_flush_buffer(MPI_Comm);
int MPI_Session_init(MPI_Info, MPI_Errhandler, MPI_Session *);
int MPI_Session_finalize(MPI_Session *);
int MPI_Session_attach_buffer(MPI_Session, void *, int);
int MPI_Session_detach_buffer(MPI_Session, void *, int *);
int MPI_Session_flush_buffer(MPI_Session);
int MPI_Session_iflush_buffer(MPI_Session, MPI_Request *);
int MPI_Comm_spawn(const char *, char **, int, MPI_Info, int, MPI_Comm, MPI_Comm *, int *);
int MPI_Comm_spawn_multiple(int, char **, char ***, const int *, const MPI_Info *, int, MPI_Comm, MPI_Comm *, int *);
int MPI_Comm_get_parent(MPI_Comm *);
int MPI_Comm_disconnect(MPI_Comm *);
int MPI_Comm_remote_size(MPI_Comm, int *);
int MPI_Comm_get_attr(MPI_Comm, int, void *, int *);
int MPI_Intercomm_merge(MPI_Comm, int, MPI_Comm *);

#endif
