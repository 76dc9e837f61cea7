/*
 * mpi.h: the C interface of MPI, with the binary interface of the MPI standard (5.0, chapter 20). Programs that are
 * compiled with it run with Dayfly's libmpi_abi.so.1, and with that of every other MPI.
 *
 * One subject: programs include one header. A test compares the functions with the symbols of the library.
 */
#ifndef MPI_H_INCLUDED
#define MPI_H_INCLUDED

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define MPI_VERSION 5
#define MPI_SUBVERSION 0
#define MPI_ABI_VERSION 1
#define MPI_ABI_SUBVERSION 0

/* Integers. */

typedef intptr_t MPI_Aint;
typedef int64_t MPI_Offset;
typedef int64_t MPI_Count;
typedef int MPI_Fint;

/* Handles: pointers to types that are never complete. */

typedef struct MPI_ABI_Comm *MPI_Comm;
typedef struct MPI_ABI_Datatype *MPI_Datatype;
typedef struct MPI_ABI_Errhandler *MPI_Errhandler;
typedef struct MPI_ABI_File *MPI_File;
typedef struct MPI_ABI_Group *MPI_Group;
typedef struct MPI_ABI_Info *MPI_Info;
typedef struct MPI_ABI_Message *MPI_Message;
typedef struct MPI_ABI_Op *MPI_Op;
typedef struct MPI_ABI_Request *MPI_Request;
typedef struct MPI_ABI_Session *MPI_Session;
typedef struct MPI_ABI_Win *MPI_Win;

typedef struct {
    int MPI_SOURCE;
    int MPI_TAG;
    int MPI_ERROR;
    int MPI_internal[5];
} MPI_Status;

/* Functions of programs. */

typedef void(MPI_User_function)(void *, void *, int *, MPI_Datatype *);
typedef void(MPI_User_function_c)(void *, void *, MPI_Count *, MPI_Datatype *);
typedef int(MPI_Grequest_query_function)(void *, MPI_Status *);
typedef int(MPI_Grequest_free_function)(void *);
typedef int(MPI_Grequest_cancel_function)(void *, int);
typedef int(MPI_Comm_copy_attr_function)(MPI_Comm, int, void *, void *, void *, int *);
typedef int(MPI_Comm_delete_attr_function)(MPI_Comm, int, void *, void *);
typedef int(MPI_Type_copy_attr_function)(MPI_Datatype, int, void *, void *, void *, int *);
typedef int(MPI_Type_delete_attr_function)(MPI_Datatype, int, void *, void *);
typedef int(MPI_Win_copy_attr_function)(MPI_Win, int, void *, void *, void *, int *);
typedef int(MPI_Win_delete_attr_function)(MPI_Win, int, void *, void *);
typedef int(MPI_Copy_function)(MPI_Comm, int, void *, void *, void *, int *);
typedef int(MPI_Delete_function)(MPI_Comm, int, void *, void *);
typedef void(MPI_Comm_errhandler_function)(MPI_Comm *, int *, ...);
typedef void(MPI_File_errhandler_function)(MPI_File *, int *, ...);
typedef void(MPI_Session_errhandler_function)(MPI_Session *, int *, ...);
typedef void(MPI_Win_errhandler_function)(MPI_Win *, int *, ...);
typedef MPI_Comm_errhandler_function MPI_Comm_errhandler_fn;
typedef MPI_File_errhandler_function MPI_File_errhandler_fn;
typedef MPI_Session_errhandler_function MPI_Session_errhandler_fn;
typedef MPI_Win_errhandler_function MPI_Win_errhandler_fn;
typedef int(MPI_Datarep_extent_function)(MPI_Datatype, MPI_Aint *, void *);
typedef int(MPI_Datarep_conversion_function)(void *, MPI_Datatype, int, void *, MPI_Offset, void *);
typedef int(MPI_Datarep_conversion_function_c)(void *, MPI_Datatype, MPI_Count, void *, MPI_Offset, void *);

/* Datatypes. */

#define MPI_DATATYPE_NULL ((MPI_Datatype)0x200)
#define MPI_AINT ((MPI_Datatype)0x201)
#define MPI_COUNT ((MPI_Datatype)0x202)
#define MPI_OFFSET ((MPI_Datatype)0x203)
#define MPI_PACKED ((MPI_Datatype)0x207)
#define MPI_SHORT ((MPI_Datatype)0x208)
#define MPI_INT ((MPI_Datatype)0x209)
#define MPI_LONG ((MPI_Datatype)0x20a)
#define MPI_LONG_LONG ((MPI_Datatype)0x20b)
#define MPI_UNSIGNED_SHORT ((MPI_Datatype)0x20c)
#define MPI_UNSIGNED ((MPI_Datatype)0x20d)
#define MPI_UNSIGNED_LONG ((MPI_Datatype)0x20e)
#define MPI_UNSIGNED_LONG_LONG ((MPI_Datatype)0x20f)
#define MPI_FLOAT ((MPI_Datatype)0x210)
#define MPI_C_FLOAT_COMPLEX ((MPI_Datatype)0x212)
#define MPI_CXX_FLOAT_COMPLEX ((MPI_Datatype)0x213)
#define MPI_DOUBLE ((MPI_Datatype)0x214)
#define MPI_C_DOUBLE_COMPLEX ((MPI_Datatype)0x216)
#define MPI_CXX_DOUBLE_COMPLEX ((MPI_Datatype)0x217)
#define MPI_LOGICAL ((MPI_Datatype)0x218)
#define MPI_INTEGER ((MPI_Datatype)0x219)
#define MPI_REAL ((MPI_Datatype)0x21a)
#define MPI_COMPLEX ((MPI_Datatype)0x21b)
#define MPI_DOUBLE_PRECISION ((MPI_Datatype)0x21c)
#define MPI_DOUBLE_COMPLEX ((MPI_Datatype)0x21d)
#define MPI_CHARACTER ((MPI_Datatype)0x21e)
#define MPI_LONG_DOUBLE ((MPI_Datatype)0x220)
#define MPI_C_LONG_DOUBLE_COMPLEX ((MPI_Datatype)0x224)
#define MPI_CXX_LONG_DOUBLE_COMPLEX ((MPI_Datatype)0x225)
#define MPI_FLOAT_INT ((MPI_Datatype)0x228)
#define MPI_DOUBLE_INT ((MPI_Datatype)0x229)
#define MPI_LONG_INT ((MPI_Datatype)0x22a)
#define MPI_2INT ((MPI_Datatype)0x22b)
#define MPI_SHORT_INT ((MPI_Datatype)0x22c)
#define MPI_LONG_DOUBLE_INT ((MPI_Datatype)0x22d)
#define MPI_2REAL ((MPI_Datatype)0x230)
#define MPI_2DOUBLE_PRECISION ((MPI_Datatype)0x231)
#define MPI_2INTEGER ((MPI_Datatype)0x232)
#define MPI_C_BOOL ((MPI_Datatype)0x238)
#define MPI_CXX_BOOL ((MPI_Datatype)0x239)
#define MPI_WCHAR ((MPI_Datatype)0x23c)
#define MPI_INT8_T ((MPI_Datatype)0x240)
#define MPI_UINT8_T ((MPI_Datatype)0x241)
#define MPI_CHAR ((MPI_Datatype)0x243)
#define MPI_SIGNED_CHAR ((MPI_Datatype)0x244)
#define MPI_UNSIGNED_CHAR ((MPI_Datatype)0x245)
#define MPI_BYTE ((MPI_Datatype)0x247)
#define MPI_INT16_T ((MPI_Datatype)0x248)
#define MPI_UINT16_T ((MPI_Datatype)0x249)
#define MPI_INT32_T ((MPI_Datatype)0x250)
#define MPI_UINT32_T ((MPI_Datatype)0x251)
#define MPI_INT64_T ((MPI_Datatype)0x258)
#define MPI_UINT64_T ((MPI_Datatype)0x259)
#define MPI_LOGICAL1 ((MPI_Datatype)0x2c0)
#define MPI_INTEGER1 ((MPI_Datatype)0x2c1)
#define MPI_LOGICAL2 ((MPI_Datatype)0x2c8)
#define MPI_INTEGER2 ((MPI_Datatype)0x2c9)
#define MPI_REAL2 ((MPI_Datatype)0x2ca)
#define MPI_LOGICAL4 ((MPI_Datatype)0x2d0)
#define MPI_INTEGER4 ((MPI_Datatype)0x2d1)
#define MPI_REAL4 ((MPI_Datatype)0x2d2)
#define MPI_COMPLEX4 ((MPI_Datatype)0x2d3)
#define MPI_LOGICAL8 ((MPI_Datatype)0x2d8)
#define MPI_INTEGER8 ((MPI_Datatype)0x2d9)
#define MPI_REAL8 ((MPI_Datatype)0x2da)
#define MPI_COMPLEX8 ((MPI_Datatype)0x2db)
#define MPI_LOGICAL16 ((MPI_Datatype)0x2e0)
#define MPI_INTEGER16 ((MPI_Datatype)0x2e1)
#define MPI_REAL16 ((MPI_Datatype)0x2e2)
#define MPI_COMPLEX16 ((MPI_Datatype)0x2e3)
#define MPI_COMPLEX32 ((MPI_Datatype)0x2eb)
#define MPI_LONG_LONG_INT MPI_LONG_LONG
#define MPI_C_COMPLEX MPI_C_FLOAT_COMPLEX

/* Operations. */

#define MPI_OP_NULL ((MPI_Op)0x20)
#define MPI_SUM ((MPI_Op)0x21)
#define MPI_MIN ((MPI_Op)0x22)
#define MPI_MAX ((MPI_Op)0x23)
#define MPI_PROD ((MPI_Op)0x24)
#define MPI_BAND ((MPI_Op)0x28)
#define MPI_BOR ((MPI_Op)0x29)
#define MPI_BXOR ((MPI_Op)0x2a)
#define MPI_LAND ((MPI_Op)0x30)
#define MPI_LOR ((MPI_Op)0x31)
#define MPI_LXOR ((MPI_Op)0x32)
#define MPI_MINLOC ((MPI_Op)0x38)
#define MPI_MAXLOC ((MPI_Op)0x39)
#define MPI_REPLACE ((MPI_Op)0x3c)
#define MPI_NO_OP ((MPI_Op)0x3d)

/* Other handles. */

#define MPI_COMM_NULL ((MPI_Comm)0x100)
#define MPI_COMM_WORLD ((MPI_Comm)0x101)
#define MPI_COMM_SELF ((MPI_Comm)0x102)
#define MPI_GROUP_NULL ((MPI_Group)0x108)
#define MPI_GROUP_EMPTY ((MPI_Group)0x109)
#define MPI_WIN_NULL ((MPI_Win)0x110)
#define MPI_FILE_NULL ((MPI_File)0x118)
#define MPI_SESSION_NULL ((MPI_Session)0x120)
#define MPI_MESSAGE_NULL ((MPI_Message)0x128)
#define MPI_MESSAGE_NO_PROC ((MPI_Message)0x129)
#define MPI_INFO_NULL ((MPI_Info)0x130)
#define MPI_INFO_ENV ((MPI_Info)0x131)
#define MPI_ERRHANDLER_NULL ((MPI_Errhandler)0x140)
#define MPI_ERRORS_ARE_FATAL ((MPI_Errhandler)0x141)
#define MPI_ERRORS_ABORT ((MPI_Errhandler)0x142)
#define MPI_ERRORS_RETURN ((MPI_Errhandler)0x143)
#define MPI_REQUEST_NULL ((MPI_Request)0x180)

/* Special addresses. */

#define MPI_BOTTOM ((void *)0)
#define MPI_IN_PLACE ((void *)1)
#define MPI_BUFFER_AUTOMATIC ((void *)2)
#define MPI_STATUS_IGNORE ((MPI_Status *)0)
#define MPI_STATUSES_IGNORE ((MPI_Status *)0)
#define MPI_ARGV_NULL ((char **)0)
#define MPI_ARGVS_NULL ((char ***)0)
#define MPI_ERRCODES_IGNORE ((int *)0)
#define MPI_UNWEIGHTED ((int *)10)
#define MPI_WEIGHTS_EMPTY ((int *)11)

/* Special functions. */

#define MPI_COMM_NULL_COPY_FN ((MPI_Comm_copy_attr_function *)0)
#define MPI_COMM_DUP_FN ((MPI_Comm_copy_attr_function *)1)
#define MPI_COMM_NULL_DELETE_FN ((MPI_Comm_delete_attr_function *)0)
#define MPI_TYPE_NULL_COPY_FN ((MPI_Type_copy_attr_function *)0)
#define MPI_TYPE_DUP_FN ((MPI_Type_copy_attr_function *)1)
#define MPI_TYPE_NULL_DELETE_FN ((MPI_Type_delete_attr_function *)0)
#define MPI_WIN_NULL_COPY_FN ((MPI_Win_copy_attr_function *)0)
#define MPI_WIN_DUP_FN ((MPI_Win_copy_attr_function *)1)
#define MPI_WIN_NULL_DELETE_FN ((MPI_Win_delete_attr_function *)0)
#define MPI_NULL_COPY_FN ((MPI_Copy_function *)0)
#define MPI_DUP_FN ((MPI_Copy_function *)1)
#define MPI_NULL_DELETE_FN ((MPI_Delete_function *)0)
#define MPI_CONVERSION_FN_NULL ((MPI_Datarep_conversion_function *)0)
#define MPI_CONVERSION_FN_NULL_C ((MPI_Datarep_conversion_function_c *)0)

/* Classes of errors. The standard leaves the last four free. */

#define MPI_SUCCESS 0
#define MPI_ERR_BUFFER 1
#define MPI_ERR_COUNT 2
#define MPI_ERR_TYPE 3
#define MPI_ERR_TAG 4
#define MPI_ERR_COMM 5
#define MPI_ERR_RANK 6
#define MPI_ERR_REQUEST 7
#define MPI_ERR_ROOT 8
#define MPI_ERR_GROUP 9
#define MPI_ERR_OP 10
#define MPI_ERR_TOPOLOGY 11
#define MPI_ERR_DIMS 12
#define MPI_ERR_ARG 13
#define MPI_ERR_UNKNOWN 14
#define MPI_ERR_TRUNCATE 15
#define MPI_ERR_OTHER 16
#define MPI_ERR_INTERN 17
#define MPI_ERR_PENDING 18
#define MPI_ERR_IN_STATUS 19
#define MPI_ERR_ACCESS 20
#define MPI_ERR_AMODE 21
#define MPI_ERR_ASSERT 22
#define MPI_ERR_BAD_FILE 23
#define MPI_ERR_BASE 24
#define MPI_ERR_CONVERSION 25
#define MPI_ERR_DISP 26
#define MPI_ERR_DUP_DATAREP 27
#define MPI_ERR_FILE_EXISTS 28
#define MPI_ERR_FILE_IN_USE 29
#define MPI_ERR_FILE 30
#define MPI_ERR_INFO_KEY 31
#define MPI_ERR_INFO_NOKEY 32
#define MPI_ERR_INFO_VALUE 33
#define MPI_ERR_INFO 34
#define MPI_ERR_IO 35
#define MPI_ERR_KEYVAL 36
#define MPI_ERR_LOCKTYPE 37
#define MPI_ERR_NAME 38
#define MPI_ERR_NO_MEM 39
#define MPI_ERR_NOT_SAME 40
#define MPI_ERR_NO_SPACE 41
#define MPI_ERR_NO_SUCH_FILE 42
#define MPI_ERR_PORT 43
#define MPI_ERR_QUOTA 44
#define MPI_ERR_READ_ONLY 45
#define MPI_ERR_RMA_ATTACH 46
#define MPI_ERR_RMA_CONFLICT 47
#define MPI_ERR_RMA_RANGE 48
#define MPI_ERR_RMA_SHARED 49
#define MPI_ERR_RMA_SYNC 50
#define MPI_ERR_SERVICE 51
#define MPI_ERR_SIZE 52
#define MPI_ERR_SPAWN 53
#define MPI_ERR_UNSUPPORTED_DATAREP 54
#define MPI_ERR_UNSUPPORTED_OPERATION 55
#define MPI_ERR_WIN 56
#define MPI_ERR_RMA_FLAVOR 57
#define MPI_ERR_PROC_ABORTED 58
#define MPI_ERR_VALUE_TOO_LARGE 59
#define MPI_ERR_SESSION 60
#define MPI_ERR_ERRHANDLER 61
#define MPI_ERR_ABI 62
#define MPIX_ERR_PROC_FAILED 0x3f01
#define MPIX_ERR_PROC_FAILED_PENDING 0x3f02
#define MPIX_ERR_REVOKED 0x3f03
#define MPIX_ERR_TIMEOUT 0x3f04
#define MPI_T_ERR_CANNOT_INIT 1001
#define MPI_T_ERR_NOT_ACCESSIBLE 1002
#define MPI_T_ERR_NOT_INITIALIZED 1003
#define MPI_T_ERR_NOT_SUPPORTED 1004
#define MPI_T_ERR_MEMORY 1005
#define MPI_T_ERR_INVALID 1006
#define MPI_T_ERR_INVALID_INDEX 1007
#define MPI_T_ERR_INVALID_ITEM 1008
#define MPI_T_ERR_INVALID_SESSION 1009
#define MPI_T_ERR_INVALID_HANDLE 1010
#define MPI_T_ERR_INVALID_NAME 1011
#define MPI_T_ERR_OUT_OF_HANDLES 1012
#define MPI_T_ERR_OUT_OF_SESSIONS 1013
#define MPI_T_ERR_CVAR_SET_NOT_NOW 1014
#define MPI_T_ERR_CVAR_SET_NEVER 1015
#define MPI_T_ERR_PVAR_NO_WRITE 1016
#define MPI_T_ERR_PVAR_NO_STARTSTOP 1017
#define MPI_T_ERR_PVAR_NO_ATOMIC 1018
#define MPI_ERR_LASTCODE 0x3fff

/* Lengths of texts, with their ends, and of buffered messages. */

#define MPI_MAX_DATAREP_STRING 128
#define MPI_MAX_ERROR_STRING 512
#define MPI_MAX_INFO_KEY 256
#define MPI_MAX_INFO_VAL 1024
#define MPI_MAX_LIBRARY_VERSION_STRING 8192
#define MPI_MAX_OBJECT_NAME 128
#define MPI_MAX_PORT_NAME 1024
#define MPI_MAX_PROCESSOR_NAME 256
#define MPI_MAX_STRINGTAG_LEN 1024
#define MPI_MAX_PSET_NAME_LEN 1024
#define MPI_BSEND_OVERHEAD 512

/* Fortran's statuses. */

#define MPI_F_STATUS_SIZE 8
#define MPI_F_SOURCE 0
#define MPI_F_TAG 1
#define MPI_F_ERROR 2

/* Other numbers. */

#define MPI_MODE_APPEND 1
#define MPI_MODE_CREATE 2
#define MPI_MODE_DELETE_ON_CLOSE 4
#define MPI_MODE_EXCL 8
#define MPI_MODE_RDONLY 16
#define MPI_MODE_RDWR 32
#define MPI_MODE_SEQUENTIAL 64
#define MPI_MODE_UNIQUE_OPEN 128
#define MPI_MODE_WRONLY 256
#define MPI_MODE_NOCHECK 1024
#define MPI_MODE_NOPRECEDE 2048
#define MPI_MODE_NOPUT 4096
#define MPI_MODE_NOSTORE 8192
#define MPI_MODE_NOSUCCEED 16384
#define MPI_ANY_SOURCE (-1)
#define MPI_ANY_TAG (-2)
#define MPI_PROC_NULL (-3)
#define MPI_ROOT (-4)
#define MPI_UNDEFINED (-32766)
#define MPI_THREAD_SINGLE 0
#define MPI_THREAD_FUNNELED 1024
#define MPI_THREAD_SERIALIZED 2048
#define MPI_THREAD_MULTIPLE 4096
#define MPI_ORDER_C 0xC
#define MPI_ORDER_FORTRAN 0xF
#define MPI_DISTRIBUTE_NONE 16
#define MPI_DISTRIBUTE_BLOCK 17
#define MPI_DISTRIBUTE_CYCLIC 18
#define MPI_DISTRIBUTE_DFLT_DARG 19
#define MPI_COMBINER_NAMED 101
#define MPI_COMBINER_DUP 102
#define MPI_COMBINER_CONTIGUOUS 103
#define MPI_COMBINER_VECTOR 104
#define MPI_COMBINER_HVECTOR 105
#define MPI_COMBINER_INDEXED 106
#define MPI_COMBINER_HINDEXED 107
#define MPI_COMBINER_INDEXED_BLOCK 108
#define MPI_COMBINER_HINDEXED_BLOCK 109
#define MPI_COMBINER_STRUCT 110
#define MPI_COMBINER_SUBARRAY 111
#define MPI_COMBINER_DARRAY 112
#define MPI_COMBINER_F90_REAL 113
#define MPI_COMBINER_F90_COMPLEX 114
#define MPI_COMBINER_F90_INTEGER 115
#define MPI_COMBINER_RESIZED 116
#define MPI_COMBINER_VALUE_INDEX 117
#define MPI_TYPECLASS_INTEGER 192
#define MPI_TYPECLASS_REAL 193
#define MPI_TYPECLASS_COMPLEX 194
#define MPI_IDENT 201
#define MPI_CONGRUENT 202
#define MPI_SIMILAR 203
#define MPI_UNEQUAL 204
#define MPI_CART 211
#define MPI_GRAPH 212
#define MPI_DIST_GRAPH 213
#define MPI_COMM_TYPE_SHARED 221
#define MPI_COMM_TYPE_HW_UNGUIDED 222
#define MPI_COMM_TYPE_HW_GUIDED 223
#define MPI_COMM_TYPE_RESOURCE_GUIDED 224
#define MPI_LOCK_EXCLUSIVE 301
#define MPI_LOCK_SHARED 302
#define MPI_WIN_FLAVOR_CREATE 311
#define MPI_WIN_FLAVOR_ALLOCATE 312
#define MPI_WIN_FLAVOR_DYNAMIC 313
#define MPI_WIN_FLAVOR_SHARED 314
#define MPI_WIN_UNIFIED 321
#define MPI_WIN_SEPARATE 322
#define MPI_SEEK_CUR 401
#define MPI_SEEK_END 402
#define MPI_SEEK_SET 403
#define MPI_KEYVAL_INVALID 0
#define MPI_TAG_UB 501
#define MPI_IO 502
#define MPI_HOST 503
#define MPI_WTIME_IS_GLOBAL 504
#define MPI_APPNUM 505
#define MPI_LASTUSEDCODE 506
#define MPI_UNIVERSE_SIZE 507
#define MPI_WIN_BASE 601
#define MPI_WIN_DISP_UNIT 602
#define MPI_WIN_SIZE 603
#define MPI_WIN_CREATE_FLAVOR 604
#define MPI_WIN_MODEL 605
#define MPI_DISPLACEMENT_CURRENT ((MPI_Offset)-1)

/* The interface for tools. */

typedef struct MPI_T_enum_t *MPI_T_enum;
typedef struct MPI_T_cvar_handle_t *MPI_T_cvar_handle;
typedef struct MPI_T_pvar_handle_t *MPI_T_pvar_handle;
typedef struct MPI_T_pvar_session_t *MPI_T_pvar_session;
typedef struct MPI_T_event_registration_t *MPI_T_event_registration;
typedef struct MPI_T_event_instance_t *MPI_T_event_instance;

#define MPI_T_ENUM_NULL ((MPI_T_enum)0)
#define MPI_T_CVAR_HANDLE_NULL ((MPI_T_cvar_handle)0)
#define MPI_T_PVAR_HANDLE_NULL ((MPI_T_pvar_handle)0)
#define MPI_T_PVAR_ALL_HANDLES ((MPI_T_pvar_handle)1)
#define MPI_T_PVAR_SESSION_NULL ((MPI_T_pvar_session)0)

typedef enum {
    MPI_T_CB_REQUIRE_NONE = 0x00,
    MPI_T_CB_REQUIRE_MPI_RESTRICTED = 0x03,
    MPI_T_CB_REQUIRE_THREAD_SAFE = 0x0f,
    MPI_T_CB_REQUIRE_ASYNC_SIGNAL_SAFE = 0x3f
} MPI_T_cb_safety;

typedef enum {
    MPI_T_SOURCE_ORDERED = 1,
    MPI_T_SOURCE_UNORDERED = 2
} MPI_T_source_order;

#define MPI_T_VERBOSITY_USER_BASIC 0x09
#define MPI_T_VERBOSITY_USER_DETAIL 0x0a
#define MPI_T_VERBOSITY_USER_ALL 0x0c
#define MPI_T_VERBOSITY_TUNER_BASIC 0x11
#define MPI_T_VERBOSITY_TUNER_DETAIL 0x12
#define MPI_T_VERBOSITY_TUNER_ALL 0x14
#define MPI_T_VERBOSITY_MPIDEV_BASIC 0x21
#define MPI_T_VERBOSITY_MPIDEV_DETAIL 0x22
#define MPI_T_VERBOSITY_MPIDEV_ALL 0x24
#define MPI_T_BIND_NO_OBJECT 1
#define MPI_T_BIND_MPI_COMM 2
#define MPI_T_BIND_MPI_DATATYPE 3
#define MPI_T_BIND_MPI_ERRHANDLER 4
#define MPI_T_BIND_MPI_FILE 5
#define MPI_T_BIND_MPI_GROUP 6
#define MPI_T_BIND_MPI_OP 7
#define MPI_T_BIND_MPI_REQUEST 8
#define MPI_T_BIND_MPI_WIN 9
#define MPI_T_BIND_MPI_MESSAGE 10
#define MPI_T_BIND_MPI_INFO 11
#define MPI_T_BIND_MPI_SESSION 12
#define MPI_T_SCOPE_CONSTANT 1
#define MPI_T_SCOPE_READONLY 2
#define MPI_T_SCOPE_LOCAL 3
#define MPI_T_SCOPE_GROUP 4
#define MPI_T_SCOPE_GROUP_EQ 5
#define MPI_T_SCOPE_ALL 6
#define MPI_T_SCOPE_ALL_EQ 7
#define MPI_T_PVAR_CLASS_STATE 1
#define MPI_T_PVAR_CLASS_LEVEL 2
#define MPI_T_PVAR_CLASS_SIZE 3
#define MPI_T_PVAR_CLASS_PERCENTAGE 4
#define MPI_T_PVAR_CLASS_HIGHWATERMARK 5
#define MPI_T_PVAR_CLASS_LOWWATERMARK 6
#define MPI_T_PVAR_CLASS_COUNTER 7
#define MPI_T_PVAR_CLASS_AGGREGATE 8
#define MPI_T_PVAR_CLASS_TIMER 9
#define MPI_T_PVAR_CLASS_GENERIC 10

typedef void(MPI_T_event_cb_function)(MPI_T_event_instance, MPI_T_event_registration, MPI_T_cb_safety, void *);
typedef void(MPI_T_event_free_cb_function)(MPI_T_event_registration, MPI_T_cb_safety, void *);
typedef void(MPI_T_event_dropped_cb_function)(MPI_Count, MPI_T_event_registration, int, MPI_T_cb_safety, void *);

/* Functions. */

int MPI_Abi_get_fortran_booleans(int, void *, void *, int *);
int MPI_Abi_get_fortran_info(MPI_Info *);
int MPI_Abi_get_info(MPI_Info *);
int MPI_Abi_get_version(int *, int *);
int MPI_Abi_set_fortran_booleans(int, void *, void *);
int MPI_Abi_set_fortran_info(MPI_Info);
int MPI_Abort(MPI_Comm, int);
int MPI_Accumulate(const void *, int, MPI_Datatype, int, MPI_Aint, int, MPI_Datatype, MPI_Op, MPI_Win);
int MPI_Accumulate_c(const void *, MPI_Count, MPI_Datatype, int, MPI_Aint, MPI_Count, MPI_Datatype, MPI_Op, MPI_Win);
int MPI_Add_error_class(int *);
int MPI_Add_error_code(int, int *);
int MPI_Add_error_string(int, const char *);
MPI_Aint MPI_Aint_add(MPI_Aint, MPI_Aint);
MPI_Aint MPI_Aint_diff(MPI_Aint, MPI_Aint);
int MPI_Allgather(const void *, int, MPI_Datatype, void *, int, MPI_Datatype, MPI_Comm);
int MPI_Allgather_c(const void *, MPI_Count, MPI_Datatype, void *, MPI_Count, MPI_Datatype, MPI_Comm);
int MPI_Allgather_init(const void *, int, MPI_Datatype, void *, int, MPI_Datatype, MPI_Comm, MPI_Info, MPI_Request *);
int MPI_Allgather_init_c(const void *, MPI_Count, MPI_Datatype, void *, MPI_Count, MPI_Datatype, MPI_Comm, MPI_Info,
    MPI_Request *);
int MPI_Allgatherv(const void *, int, MPI_Datatype, void *, const int[], const int[], MPI_Datatype, MPI_Comm);
int MPI_Allgatherv_c(const void *, MPI_Count, MPI_Datatype, void *, const MPI_Count[], const MPI_Aint[], MPI_Datatype,
    MPI_Comm);
int MPI_Allgatherv_init(const void *, int, MPI_Datatype, void *, const int[], const int[], MPI_Datatype, MPI_Comm,
    MPI_Info, MPI_Request *);
int MPI_Allgatherv_init_c(const void *, MPI_Count, MPI_Datatype, void *, const MPI_Count[], const MPI_Aint[],
    MPI_Datatype, MPI_Comm, MPI_Info, MPI_Request *);
int MPI_Alloc_mem(MPI_Aint, MPI_Info, void *);
int MPI_Allreduce(const void *, void *, int, MPI_Datatype, MPI_Op, MPI_Comm);
int MPI_Allreduce_c(const void *, void *, MPI_Count, MPI_Datatype, MPI_Op, MPI_Comm);
int MPI_Allreduce_init(const void *, void *, int, MPI_Datatype, MPI_Op, MPI_Comm, MPI_Info, MPI_Request *);
int MPI_Allreduce_init_c(const void *, void *, MPI_Count, MPI_Datatype, MPI_Op, MPI_Comm, MPI_Info, MPI_Request *);
int MPI_Alltoall(const void *, int, MPI_Datatype, void *, int, MPI_Datatype, MPI_Comm);
int MPI_Alltoall_c(const void *, MPI_Count, MPI_Datatype, void *, MPI_Count, MPI_Datatype, MPI_Comm);
int MPI_Alltoall_init(const void *, int, MPI_Datatype, void *, int, MPI_Datatype, MPI_Comm, MPI_Info, MPI_Request *);
int MPI_Alltoall_init_c(const void *, MPI_Count, MPI_Datatype, void *, MPI_Count, MPI_Datatype, MPI_Comm, MPI_Info,
    MPI_Request *);
int MPI_Alltoallv(const void *, const int[], const int[], MPI_Datatype, void *, const int[], const int[],
    MPI_Datatype, MPI_Comm);
int MPI_Alltoallv_c(const void *, const MPI_Count[], const MPI_Aint[], MPI_Datatype, void *, const MPI_Count[],
    const MPI_Aint[], MPI_Datatype, MPI_Comm);
int MPI_Alltoallv_init(const void *, const int[], const int[], MPI_Datatype, void *, const int[], const int[],
    MPI_Datatype, MPI_Comm, MPI_Info, MPI_Request *);
int MPI_Alltoallv_init_c(const void *, const MPI_Count[], const MPI_Aint[], MPI_Datatype, void *, const MPI_Count[],
    const MPI_Aint[], MPI_Datatype, MPI_Comm, MPI_Info, MPI_Request *);
int MPI_Alltoallw(const void *, const int[], const int[], const MPI_Datatype[], void *, const int[], const int[],
    const MPI_Datatype[], MPI_Comm);
int MPI_Alltoallw_c(const void *, const MPI_Count[], const MPI_Aint[], const MPI_Datatype[], void *,
    const MPI_Count[], const MPI_Aint[], const MPI_Datatype[], MPI_Comm);
int MPI_Alltoallw_init(const void *, const int[], const int[], const MPI_Datatype[], void *, const int[], const int[],
    const MPI_Datatype[], MPI_Comm, MPI_Info, MPI_Request *);
int MPI_Alltoallw_init_c(const void *, const MPI_Count[], const MPI_Aint[], const MPI_Datatype[], void *,
    const MPI_Count[], const MPI_Aint[], const MPI_Datatype[], MPI_Comm, MPI_Info, MPI_Request *);
int MPI_Attr_delete(MPI_Comm, int);
int MPI_Attr_get(MPI_Comm, int, void *, int *);
int MPI_Attr_put(MPI_Comm, int, void *);
int MPI_Barrier(MPI_Comm);
int MPI_Barrier_init(MPI_Comm, MPI_Info, MPI_Request *);
int MPI_Bcast(void *, int, MPI_Datatype, int, MPI_Comm);
int MPI_Bcast_c(void *, MPI_Count, MPI_Datatype, int, MPI_Comm);
int MPI_Bcast_init(void *, int, MPI_Datatype, int, MPI_Comm, MPI_Info, MPI_Request *);
int MPI_Bcast_init_c(void *, MPI_Count, MPI_Datatype, int, MPI_Comm, MPI_Info, MPI_Request *);
int MPI_Bsend(const void *, int, MPI_Datatype, int, int, MPI_Comm);
int MPI_Bsend_c(const void *, MPI_Count, MPI_Datatype, int, int, MPI_Comm);
int MPI_Bsend_init(const void *, int, MPI_Datatype, int, int, MPI_Comm, MPI_Request *);
int MPI_Bsend_init_c(const void *, MPI_Count, MPI_Datatype, int, int, MPI_Comm, MPI_Request *);
int MPI_Buffer_attach(void *, int);
int MPI_Buffer_attach_c(void *, MPI_Count);
int MPI_Buffer_detach(void *, int *);
int MPI_Buffer_detach_c(void *, MPI_Count *);
int MPI_Buffer_flush(void);
int MPI_Buffer_iflush(MPI_Request *);
int MPI_Cancel(MPI_Request *);
int MPI_Cart_coords(MPI_Comm, int, int, int[]);
int MPI_Cart_create(MPI_Comm, int, const int[], const int[], int, MPI_Comm *);
int MPI_Cart_get(MPI_Comm, int, int[], int[], int[]);
int MPI_Cart_map(MPI_Comm, int, const int[], const int[], int *);
int MPI_Cart_rank(MPI_Comm, const int[], int *);
int MPI_Cart_shift(MPI_Comm, int, int, int *, int *);
int MPI_Cart_sub(MPI_Comm, const int[], MPI_Comm *);
int MPI_Cartdim_get(MPI_Comm, int *);
int MPI_Close_port(const char *);
int MPI_Comm_accept(const char *, MPI_Info, int, MPI_Comm, MPI_Comm *);
int MPI_Comm_attach_buffer(MPI_Comm, void *, int);
int MPI_Comm_attach_buffer_c(MPI_Comm, void *, MPI_Count);
MPI_Fint MPI_Comm_c2f(MPI_Comm);
int MPI_Comm_call_errhandler(MPI_Comm, int);
int MPI_Comm_compare(MPI_Comm, MPI_Comm, int *);
int MPI_Comm_connect(const char *, MPI_Info, int, MPI_Comm, MPI_Comm *);
int MPI_Comm_create(MPI_Comm, MPI_Group, MPI_Comm *);
int MPI_Comm_create_errhandler(MPI_Comm_errhandler_function *, MPI_Errhandler *);
int MPI_Comm_create_from_group(MPI_Group, const char *, MPI_Info, MPI_Errhandler, MPI_Comm *);
int MPI_Comm_create_group(MPI_Comm, MPI_Group, int, MPI_Comm *);
int MPI_Comm_create_keyval(MPI_Comm_copy_attr_function *, MPI_Comm_delete_attr_function *, int *, void *);
int MPI_Comm_delete_attr(MPI_Comm, int);
int MPI_Comm_detach_buffer(MPI_Comm, void *, int *);
int MPI_Comm_detach_buffer_c(MPI_Comm, void *, MPI_Count *);
int MPI_Comm_disconnect(MPI_Comm *);
int MPI_Comm_dup(MPI_Comm, MPI_Comm *);
int MPI_Comm_dup_with_info(MPI_Comm, MPI_Info, MPI_Comm *);
MPI_Comm MPI_Comm_f2c(MPI_Fint);
int MPI_Comm_flush_buffer(MPI_Comm);
int MPI_Comm_free(MPI_Comm *);
int MPI_Comm_free_keyval(int *);
MPI_Comm MPI_Comm_fromint(int);
int MPI_Comm_get_attr(MPI_Comm, int, void *, int *);
int MPI_Comm_get_errhandler(MPI_Comm, MPI_Errhandler *);
int MPI_Comm_get_info(MPI_Comm, MPI_Info *);
int MPI_Comm_get_name(MPI_Comm, char *, int *);
int MPI_Comm_get_parent(MPI_Comm *);
int MPI_Comm_group(MPI_Comm, MPI_Group *);
int MPI_Comm_idup(MPI_Comm, MPI_Comm *, MPI_Request *);
int MPI_Comm_idup_with_info(MPI_Comm, MPI_Info, MPI_Comm *, MPI_Request *);
int MPI_Comm_iflush_buffer(MPI_Comm, MPI_Request *);
int MPI_Comm_join(int, MPI_Comm *);
int MPI_Comm_rank(MPI_Comm, int *);
int MPI_Comm_remote_group(MPI_Comm, MPI_Group *);
int MPI_Comm_remote_size(MPI_Comm, int *);
int MPI_Comm_set_attr(MPI_Comm, int, void *);
int MPI_Comm_set_errhandler(MPI_Comm, MPI_Errhandler);
int MPI_Comm_set_info(MPI_Comm, MPI_Info);
int MPI_Comm_set_name(MPI_Comm, const char *);
int MPI_Comm_size(MPI_Comm, int *);
int MPI_Comm_spawn(const char *, char *[], int, MPI_Info, int, MPI_Comm, MPI_Comm *, int[]);
int MPI_Comm_spawn_multiple(int, char *[], char **[], const int[], const MPI_Info[], int, MPI_Comm, MPI_Comm *, int[]);
int MPI_Comm_split(MPI_Comm, int, int, MPI_Comm *);
int MPI_Comm_split_type(MPI_Comm, int, int, MPI_Info, MPI_Comm *);
int MPI_Comm_test_inter(MPI_Comm, int *);
int MPI_Comm_toint(MPI_Comm);
int MPI_Compare_and_swap(const void *, const void *, void *, MPI_Datatype, int, MPI_Aint, MPI_Win);
int MPI_Dims_create(int, int, int[]);
int MPI_Dist_graph_create(MPI_Comm, int, const int[], const int[], const int[], const int *, MPI_Info, int, MPI_Comm *);
int MPI_Dist_graph_create_adjacent(MPI_Comm, int, const int[], const int *, int, const int[], const int *, MPI_Info,
    int, MPI_Comm *);
int MPI_Dist_graph_neighbors(MPI_Comm, int, int[], int *, int, int[], int *);
int MPI_Dist_graph_neighbors_count(MPI_Comm, int *, int *, int *);
MPI_Fint MPI_Errhandler_c2f(MPI_Errhandler);
MPI_Errhandler MPI_Errhandler_f2c(MPI_Fint);
int MPI_Errhandler_free(MPI_Errhandler *);
MPI_Errhandler MPI_Errhandler_fromint(int);
int MPI_Errhandler_toint(MPI_Errhandler);
int MPI_Error_class(int, int *);
int MPI_Error_string(int, char *, int *);
int MPI_Exscan(const void *, void *, int, MPI_Datatype, MPI_Op, MPI_Comm);
int MPI_Exscan_c(const void *, void *, MPI_Count, MPI_Datatype, MPI_Op, MPI_Comm);
int MPI_Exscan_init(const void *, void *, int, MPI_Datatype, MPI_Op, MPI_Comm, MPI_Info, MPI_Request *);
int MPI_Exscan_init_c(const void *, void *, MPI_Count, MPI_Datatype, MPI_Op, MPI_Comm, MPI_Info, MPI_Request *);
int MPI_Fetch_and_op(const void *, void *, MPI_Datatype, int, MPI_Aint, MPI_Op, MPI_Win);
MPI_Fint MPI_File_c2f(MPI_File);
int MPI_File_call_errhandler(MPI_File, int);
int MPI_File_close(MPI_File *);
int MPI_File_create_errhandler(MPI_File_errhandler_function *, MPI_Errhandler *);
int MPI_File_delete(const char *, MPI_Info);
MPI_File MPI_File_f2c(MPI_Fint);
MPI_File MPI_File_fromint(int);
int MPI_File_get_amode(MPI_File, int *);
int MPI_File_get_atomicity(MPI_File, int *);
int MPI_File_get_byte_offset(MPI_File, MPI_Offset, MPI_Offset *);
int MPI_File_get_errhandler(MPI_File, MPI_Errhandler *);
int MPI_File_get_group(MPI_File, MPI_Group *);
int MPI_File_get_info(MPI_File, MPI_Info *);
int MPI_File_get_position(MPI_File, MPI_Offset *);
int MPI_File_get_position_shared(MPI_File, MPI_Offset *);
int MPI_File_get_size(MPI_File, MPI_Offset *);
int MPI_File_get_type_extent(MPI_File, MPI_Datatype, MPI_Aint *);
int MPI_File_get_type_extent_c(MPI_File, MPI_Datatype, MPI_Count *);
int MPI_File_get_view(MPI_File, MPI_Offset *, MPI_Datatype *, MPI_Datatype *, char *);
int MPI_File_iread(MPI_File, void *, int, MPI_Datatype, MPI_Request *);
int MPI_File_iread_all(MPI_File, void *, int, MPI_Datatype, MPI_Request *);
int MPI_File_iread_all_c(MPI_File, void *, MPI_Count, MPI_Datatype, MPI_Request *);
int MPI_File_iread_at(MPI_File, MPI_Offset, void *, int, MPI_Datatype, MPI_Request *);
int MPI_File_iread_at_all(MPI_File, MPI_Offset, void *, int, MPI_Datatype, MPI_Request *);
int MPI_File_iread_at_all_c(MPI_File, MPI_Offset, void *, MPI_Count, MPI_Datatype, MPI_Request *);
int MPI_File_iread_at_c(MPI_File, MPI_Offset, void *, MPI_Count, MPI_Datatype, MPI_Request *);
int MPI_File_iread_c(MPI_File, void *, MPI_Count, MPI_Datatype, MPI_Request *);
int MPI_File_iread_shared(MPI_File, void *, int, MPI_Datatype, MPI_Request *);
int MPI_File_iread_shared_c(MPI_File, void *, MPI_Count, MPI_Datatype, MPI_Request *);
int MPI_File_iwrite(MPI_File, const void *, int, MPI_Datatype, MPI_Request *);
int MPI_File_iwrite_all(MPI_File, const void *, int, MPI_Datatype, MPI_Request *);
int MPI_File_iwrite_all_c(MPI_File, const void *, MPI_Count, MPI_Datatype, MPI_Request *);
int MPI_File_iwrite_at(MPI_File, MPI_Offset, const void *, int, MPI_Datatype, MPI_Request *);
int MPI_File_iwrite_at_all(MPI_File, MPI_Offset, const void *, int, MPI_Datatype, MPI_Request *);
int MPI_File_iwrite_at_all_c(MPI_File, MPI_Offset, const void *, MPI_Count, MPI_Datatype, MPI_Request *);
int MPI_File_iwrite_at_c(MPI_File, MPI_Offset, const void *, MPI_Count, MPI_Datatype, MPI_Request *);
int MPI_File_iwrite_c(MPI_File, const void *, MPI_Count, MPI_Datatype, MPI_Request *);
int MPI_File_iwrite_shared(MPI_File, const void *, int, MPI_Datatype, MPI_Request *);
int MPI_File_iwrite_shared_c(MPI_File, const void *, MPI_Count, MPI_Datatype, MPI_Request *);
int MPI_File_open(MPI_Comm, const char *, int, MPI_Info, MPI_File *);
int MPI_File_preallocate(MPI_File, MPI_Offset);
int MPI_File_read(MPI_File, void *, int, MPI_Datatype, MPI_Status *);
int MPI_File_read_all(MPI_File, void *, int, MPI_Datatype, MPI_Status *);
int MPI_File_read_all_begin(MPI_File, void *, int, MPI_Datatype);
int MPI_File_read_all_begin_c(MPI_File, void *, MPI_Count, MPI_Datatype);
int MPI_File_read_all_c(MPI_File, void *, MPI_Count, MPI_Datatype, MPI_Status *);
int MPI_File_read_all_end(MPI_File, void *, MPI_Status *);
int MPI_File_read_at(MPI_File, MPI_Offset, void *, int, MPI_Datatype, MPI_Status *);
int MPI_File_read_at_all(MPI_File, MPI_Offset, void *, int, MPI_Datatype, MPI_Status *);
int MPI_File_read_at_all_begin(MPI_File, MPI_Offset, void *, int, MPI_Datatype);
int MPI_File_read_at_all_begin_c(MPI_File, MPI_Offset, void *, MPI_Count, MPI_Datatype);
int MPI_File_read_at_all_c(MPI_File, MPI_Offset, void *, MPI_Count, MPI_Datatype, MPI_Status *);
int MPI_File_read_at_all_end(MPI_File, void *, MPI_Status *);
int MPI_File_read_at_c(MPI_File, MPI_Offset, void *, MPI_Count, MPI_Datatype, MPI_Status *);
int MPI_File_read_c(MPI_File, void *, MPI_Count, MPI_Datatype, MPI_Status *);
int MPI_File_read_ordered(MPI_File, void *, int, MPI_Datatype, MPI_Status *);
int MPI_File_read_ordered_begin(MPI_File, void *, int, MPI_Datatype);
int MPI_File_read_ordered_begin_c(MPI_File, void *, MPI_Count, MPI_Datatype);
int MPI_File_read_ordered_c(MPI_File, void *, MPI_Count, MPI_Datatype, MPI_Status *);
int MPI_File_read_ordered_end(MPI_File, void *, MPI_Status *);
int MPI_File_read_shared(MPI_File, void *, int, MPI_Datatype, MPI_Status *);
int MPI_File_read_shared_c(MPI_File, void *, MPI_Count, MPI_Datatype, MPI_Status *);
int MPI_File_seek(MPI_File, MPI_Offset, int);
int MPI_File_seek_shared(MPI_File, MPI_Offset, int);
int MPI_File_set_atomicity(MPI_File, int);
int MPI_File_set_errhandler(MPI_File, MPI_Errhandler);
int MPI_File_set_info(MPI_File, MPI_Info);
int MPI_File_set_size(MPI_File, MPI_Offset);
int MPI_File_set_view(MPI_File, MPI_Offset, MPI_Datatype, MPI_Datatype, const char *, MPI_Info);
int MPI_File_sync(MPI_File);
int MPI_File_toint(MPI_File);
int MPI_File_write(MPI_File, const void *, int, MPI_Datatype, MPI_Status *);
int MPI_File_write_all(MPI_File, const void *, int, MPI_Datatype, MPI_Status *);
int MPI_File_write_all_begin(MPI_File, const void *, int, MPI_Datatype);
int MPI_File_write_all_begin_c(MPI_File, const void *, MPI_Count, MPI_Datatype);
int MPI_File_write_all_c(MPI_File, const void *, MPI_Count, MPI_Datatype, MPI_Status *);
int MPI_File_write_all_end(MPI_File, const void *, MPI_Status *);
int MPI_File_write_at(MPI_File, MPI_Offset, const void *, int, MPI_Datatype, MPI_Status *);
int MPI_File_write_at_all(MPI_File, MPI_Offset, const void *, int, MPI_Datatype, MPI_Status *);
int MPI_File_write_at_all_begin(MPI_File, MPI_Offset, const void *, int, MPI_Datatype);
int MPI_File_write_at_all_begin_c(MPI_File, MPI_Offset, const void *, MPI_Count, MPI_Datatype);
int MPI_File_write_at_all_c(MPI_File, MPI_Offset, const void *, MPI_Count, MPI_Datatype, MPI_Status *);
int MPI_File_write_at_all_end(MPI_File, const void *, MPI_Status *);
int MPI_File_write_at_c(MPI_File, MPI_Offset, const void *, MPI_Count, MPI_Datatype, MPI_Status *);
int MPI_File_write_c(MPI_File, const void *, MPI_Count, MPI_Datatype, MPI_Status *);
int MPI_File_write_ordered(MPI_File, const void *, int, MPI_Datatype, MPI_Status *);
int MPI_File_write_ordered_begin(MPI_File, const void *, int, MPI_Datatype);
int MPI_File_write_ordered_begin_c(MPI_File, const void *, MPI_Count, MPI_Datatype);
int MPI_File_write_ordered_c(MPI_File, const void *, MPI_Count, MPI_Datatype, MPI_Status *);
int MPI_File_write_ordered_end(MPI_File, const void *, MPI_Status *);
int MPI_File_write_shared(MPI_File, const void *, int, MPI_Datatype, MPI_Status *);
int MPI_File_write_shared_c(MPI_File, const void *, MPI_Count, MPI_Datatype, MPI_Status *);
int MPI_Finalize(void);
int MPI_Finalized(int *);
int MPI_Free_mem(void *);
int MPI_Gather(const void *, int, MPI_Datatype, void *, int, MPI_Datatype, int, MPI_Comm);
int MPI_Gather_c(const void *, MPI_Count, MPI_Datatype, void *, MPI_Count, MPI_Datatype, int, MPI_Comm);
int MPI_Gather_init(const void *, int, MPI_Datatype, void *, int, MPI_Datatype, int, MPI_Comm, MPI_Info, MPI_Request *);
int MPI_Gather_init_c(const void *, MPI_Count, MPI_Datatype, void *, MPI_Count, MPI_Datatype, int, MPI_Comm, MPI_Info,
    MPI_Request *);
int MPI_Gatherv(const void *, int, MPI_Datatype, void *, const int[], const int[], MPI_Datatype, int, MPI_Comm);
int MPI_Gatherv_c(const void *, MPI_Count, MPI_Datatype, void *, const MPI_Count[], const MPI_Aint[], MPI_Datatype,
    int, MPI_Comm);
int MPI_Gatherv_init(const void *, int, MPI_Datatype, void *, const int[], const int[], MPI_Datatype, int, MPI_Comm,
    MPI_Info, MPI_Request *);
int MPI_Gatherv_init_c(const void *, MPI_Count, MPI_Datatype, void *, const MPI_Count[], const MPI_Aint[],
    MPI_Datatype, int, MPI_Comm, MPI_Info, MPI_Request *);
int MPI_Get(void *, int, MPI_Datatype, int, MPI_Aint, int, MPI_Datatype, MPI_Win);
int MPI_Get_accumulate(const void *, int, MPI_Datatype, void *, int, MPI_Datatype, int, MPI_Aint, int, MPI_Datatype,
    MPI_Op, MPI_Win);
int MPI_Get_accumulate_c(const void *, MPI_Count, MPI_Datatype, void *, MPI_Count, MPI_Datatype, int, MPI_Aint,
    MPI_Count, MPI_Datatype, MPI_Op, MPI_Win);
int MPI_Get_address(const void *, MPI_Aint *);
int MPI_Get_c(void *, MPI_Count, MPI_Datatype, int, MPI_Aint, MPI_Count, MPI_Datatype, MPI_Win);
int MPI_Get_count(const MPI_Status *, MPI_Datatype, int *);
int MPI_Get_count_c(const MPI_Status *, MPI_Datatype, MPI_Count *);
int MPI_Get_elements(const MPI_Status *, MPI_Datatype, int *);
int MPI_Get_elements_c(const MPI_Status *, MPI_Datatype, MPI_Count *);
int MPI_Get_elements_x(const MPI_Status *, MPI_Datatype, MPI_Count *);
int MPI_Get_hw_resource_info(MPI_Info *);
int MPI_Get_library_version(char *, int *);
int MPI_Get_processor_name(char *, int *);
int MPI_Get_version(int *, int *);
int MPI_Graph_create(MPI_Comm, int, const int[], const int[], int, MPI_Comm *);
int MPI_Graph_get(MPI_Comm, int, int, int[], int[]);
int MPI_Graph_map(MPI_Comm, int, const int[], const int[], int *);
int MPI_Graph_neighbors(MPI_Comm, int, int, int[]);
int MPI_Graph_neighbors_count(MPI_Comm, int, int *);
int MPI_Graphdims_get(MPI_Comm, int *, int *);
int MPI_Grequest_complete(MPI_Request);
int MPI_Grequest_start(MPI_Grequest_query_function *, MPI_Grequest_free_function *, MPI_Grequest_cancel_function *,
    void *, MPI_Request *);
MPI_Fint MPI_Group_c2f(MPI_Group);
int MPI_Group_compare(MPI_Group, MPI_Group, int *);
int MPI_Group_difference(MPI_Group, MPI_Group, MPI_Group *);
int MPI_Group_excl(MPI_Group, int, const int[], MPI_Group *);
MPI_Group MPI_Group_f2c(MPI_Fint);
int MPI_Group_free(MPI_Group *);
int MPI_Group_from_session_pset(MPI_Session, const char *, MPI_Group *);
MPI_Group MPI_Group_fromint(int);
int MPI_Group_incl(MPI_Group, int, const int[], MPI_Group *);
int MPI_Group_intersection(MPI_Group, MPI_Group, MPI_Group *);
int MPI_Group_range_excl(MPI_Group, int, int[][3], MPI_Group *);
int MPI_Group_range_incl(MPI_Group, int, int[][3], MPI_Group *);
int MPI_Group_rank(MPI_Group, int *);
int MPI_Group_size(MPI_Group, int *);
int MPI_Group_toint(MPI_Group);
int MPI_Group_translate_ranks(MPI_Group, int, const int[], MPI_Group, int[]);
int MPI_Group_union(MPI_Group, MPI_Group, MPI_Group *);
int MPI_Iallgather(const void *, int, MPI_Datatype, void *, int, MPI_Datatype, MPI_Comm, MPI_Request *);
int MPI_Iallgather_c(const void *, MPI_Count, MPI_Datatype, void *, MPI_Count, MPI_Datatype, MPI_Comm, MPI_Request *);
int MPI_Iallgatherv(const void *, int, MPI_Datatype, void *, const int[], const int[], MPI_Datatype, MPI_Comm,
    MPI_Request *);
int MPI_Iallgatherv_c(const void *, MPI_Count, MPI_Datatype, void *, const MPI_Count[], const MPI_Aint[],
    MPI_Datatype, MPI_Comm, MPI_Request *);
int MPI_Iallreduce(const void *, void *, int, MPI_Datatype, MPI_Op, MPI_Comm, MPI_Request *);
int MPI_Iallreduce_c(const void *, void *, MPI_Count, MPI_Datatype, MPI_Op, MPI_Comm, MPI_Request *);
int MPI_Ialltoall(const void *, int, MPI_Datatype, void *, int, MPI_Datatype, MPI_Comm, MPI_Request *);
int MPI_Ialltoall_c(const void *, MPI_Count, MPI_Datatype, void *, MPI_Count, MPI_Datatype, MPI_Comm, MPI_Request *);
int MPI_Ialltoallv(const void *, const int[], const int[], MPI_Datatype, void *, const int[], const int[],
    MPI_Datatype, MPI_Comm, MPI_Request *);
int MPI_Ialltoallv_c(const void *, const MPI_Count[], const MPI_Aint[], MPI_Datatype, void *, const MPI_Count[],
    const MPI_Aint[], MPI_Datatype, MPI_Comm, MPI_Request *);
int MPI_Ialltoallw(const void *, const int[], const int[], const MPI_Datatype[], void *, const int[], const int[],
    const MPI_Datatype[], MPI_Comm, MPI_Request *);
int MPI_Ialltoallw_c(const void *, const MPI_Count[], const MPI_Aint[], const MPI_Datatype[], void *,
    const MPI_Count[], const MPI_Aint[], const MPI_Datatype[], MPI_Comm, MPI_Request *);
int MPI_Ibarrier(MPI_Comm, MPI_Request *);
int MPI_Ibcast(void *, int, MPI_Datatype, int, MPI_Comm, MPI_Request *);
int MPI_Ibcast_c(void *, MPI_Count, MPI_Datatype, int, MPI_Comm, MPI_Request *);
int MPI_Ibsend(const void *, int, MPI_Datatype, int, int, MPI_Comm, MPI_Request *);
int MPI_Ibsend_c(const void *, MPI_Count, MPI_Datatype, int, int, MPI_Comm, MPI_Request *);
int MPI_Iexscan(const void *, void *, int, MPI_Datatype, MPI_Op, MPI_Comm, MPI_Request *);
int MPI_Iexscan_c(const void *, void *, MPI_Count, MPI_Datatype, MPI_Op, MPI_Comm, MPI_Request *);
int MPI_Igather(const void *, int, MPI_Datatype, void *, int, MPI_Datatype, int, MPI_Comm, MPI_Request *);
int MPI_Igather_c(const void *, MPI_Count, MPI_Datatype, void *, MPI_Count, MPI_Datatype, int, MPI_Comm, MPI_Request *);
int MPI_Igatherv(const void *, int, MPI_Datatype, void *, const int[], const int[], MPI_Datatype, int, MPI_Comm,
    MPI_Request *);
int MPI_Igatherv_c(const void *, MPI_Count, MPI_Datatype, void *, const MPI_Count[], const MPI_Aint[], MPI_Datatype,
    int, MPI_Comm, MPI_Request *);
int MPI_Improbe(int, int, MPI_Comm, int *, MPI_Message *, MPI_Status *);
int MPI_Imrecv(void *, int, MPI_Datatype, MPI_Message *, MPI_Request *);
int MPI_Imrecv_c(void *, MPI_Count, MPI_Datatype, MPI_Message *, MPI_Request *);
int MPI_Ineighbor_allgather(const void *, int, MPI_Datatype, void *, int, MPI_Datatype, MPI_Comm, MPI_Request *);
int MPI_Ineighbor_allgather_c(const void *, MPI_Count, MPI_Datatype, void *, MPI_Count, MPI_Datatype, MPI_Comm,
    MPI_Request *);
int MPI_Ineighbor_allgatherv(const void *, int, MPI_Datatype, void *, const int[], const int[], MPI_Datatype,
    MPI_Comm, MPI_Request *);
int MPI_Ineighbor_allgatherv_c(const void *, MPI_Count, MPI_Datatype, void *, const MPI_Count[], const MPI_Aint[],
    MPI_Datatype, MPI_Comm, MPI_Request *);
int MPI_Ineighbor_alltoall(const void *, int, MPI_Datatype, void *, int, MPI_Datatype, MPI_Comm, MPI_Request *);
int MPI_Ineighbor_alltoall_c(const void *, MPI_Count, MPI_Datatype, void *, MPI_Count, MPI_Datatype, MPI_Comm,
    MPI_Request *);
int MPI_Ineighbor_alltoallv(const void *, const int[], const int[], MPI_Datatype, void *, const int[], const int[],
    MPI_Datatype, MPI_Comm, MPI_Request *);
int MPI_Ineighbor_alltoallv_c(const void *, const MPI_Count[], const MPI_Aint[], MPI_Datatype, void *,
    const MPI_Count[], const MPI_Aint[], MPI_Datatype, MPI_Comm, MPI_Request *);
int MPI_Ineighbor_alltoallw(const void *, const int[], const MPI_Aint[], const MPI_Datatype[], void *, const int[],
    const MPI_Aint[], const MPI_Datatype[], MPI_Comm, MPI_Request *);
int MPI_Ineighbor_alltoallw_c(const void *, const MPI_Count[], const MPI_Aint[], const MPI_Datatype[], void *,
    const MPI_Count[], const MPI_Aint[], const MPI_Datatype[], MPI_Comm, MPI_Request *);
MPI_Fint MPI_Info_c2f(MPI_Info);
int MPI_Info_create(MPI_Info *);
int MPI_Info_create_env(int, char *[], MPI_Info *);
int MPI_Info_delete(MPI_Info, const char *);
int MPI_Info_dup(MPI_Info, MPI_Info *);
MPI_Info MPI_Info_f2c(MPI_Fint);
int MPI_Info_free(MPI_Info *);
MPI_Info MPI_Info_fromint(int);
int MPI_Info_get(MPI_Info, const char *, int, char *, int *);
int MPI_Info_get_nkeys(MPI_Info, int *);
int MPI_Info_get_nthkey(MPI_Info, int, char *);
int MPI_Info_get_string(MPI_Info, const char *, int *, char *, int *);
int MPI_Info_get_valuelen(MPI_Info, const char *, int *, int *);
int MPI_Info_set(MPI_Info, const char *, const char *);
int MPI_Info_toint(MPI_Info);
int MPI_Init(int *, char ***);
int MPI_Init_thread(int *, char ***, int, int *);
int MPI_Initialized(int *);
int MPI_Intercomm_create(MPI_Comm, int, MPI_Comm, int, int, MPI_Comm *);
int MPI_Intercomm_create_from_groups(MPI_Group, int, MPI_Group, int, const char *, MPI_Info, MPI_Errhandler,
    MPI_Comm *);
int MPI_Intercomm_merge(MPI_Comm, int, MPI_Comm *);
int MPI_Iprobe(int, int, MPI_Comm, int *, MPI_Status *);
int MPI_Irecv(void *, int, MPI_Datatype, int, int, MPI_Comm, MPI_Request *);
int MPI_Irecv_c(void *, MPI_Count, MPI_Datatype, int, int, MPI_Comm, MPI_Request *);
int MPI_Ireduce(const void *, void *, int, MPI_Datatype, MPI_Op, int, MPI_Comm, MPI_Request *);
int MPI_Ireduce_c(const void *, void *, MPI_Count, MPI_Datatype, MPI_Op, int, MPI_Comm, MPI_Request *);
int MPI_Ireduce_scatter(const void *, void *, const int[], MPI_Datatype, MPI_Op, MPI_Comm, MPI_Request *);
int MPI_Ireduce_scatter_block(const void *, void *, int, MPI_Datatype, MPI_Op, MPI_Comm, MPI_Request *);
int MPI_Ireduce_scatter_block_c(const void *, void *, MPI_Count, MPI_Datatype, MPI_Op, MPI_Comm, MPI_Request *);
int MPI_Ireduce_scatter_c(const void *, void *, const MPI_Count[], MPI_Datatype, MPI_Op, MPI_Comm, MPI_Request *);
int MPI_Irsend(const void *, int, MPI_Datatype, int, int, MPI_Comm, MPI_Request *);
int MPI_Irsend_c(const void *, MPI_Count, MPI_Datatype, int, int, MPI_Comm, MPI_Request *);
int MPI_Is_thread_main(int *);
int MPI_Iscan(const void *, void *, int, MPI_Datatype, MPI_Op, MPI_Comm, MPI_Request *);
int MPI_Iscan_c(const void *, void *, MPI_Count, MPI_Datatype, MPI_Op, MPI_Comm, MPI_Request *);
int MPI_Iscatter(const void *, int, MPI_Datatype, void *, int, MPI_Datatype, int, MPI_Comm, MPI_Request *);
int MPI_Iscatter_c(const void *, MPI_Count, MPI_Datatype, void *, MPI_Count, MPI_Datatype, int, MPI_Comm,
    MPI_Request *);
int MPI_Iscatterv(const void *, const int[], const int[], MPI_Datatype, void *, int, MPI_Datatype, int, MPI_Comm,
    MPI_Request *);
int MPI_Iscatterv_c(const void *, const MPI_Count[], const MPI_Aint[], MPI_Datatype, void *, MPI_Count, MPI_Datatype,
    int, MPI_Comm, MPI_Request *);
int MPI_Isend(const void *, int, MPI_Datatype, int, int, MPI_Comm, MPI_Request *);
int MPI_Isend_c(const void *, MPI_Count, MPI_Datatype, int, int, MPI_Comm, MPI_Request *);
int MPI_Isendrecv(const void *, int, MPI_Datatype, int, int, void *, int, MPI_Datatype, int, int, MPI_Comm,
    MPI_Request *);
int MPI_Isendrecv_c(const void *, MPI_Count, MPI_Datatype, int, int, void *, MPI_Count, MPI_Datatype, int, int,
    MPI_Comm, MPI_Request *);
int MPI_Isendrecv_replace(void *, int, MPI_Datatype, int, int, int, int, MPI_Comm, MPI_Request *);
int MPI_Isendrecv_replace_c(void *, MPI_Count, MPI_Datatype, int, int, int, int, MPI_Comm, MPI_Request *);
int MPI_Issend(const void *, int, MPI_Datatype, int, int, MPI_Comm, MPI_Request *);
int MPI_Issend_c(const void *, MPI_Count, MPI_Datatype, int, int, MPI_Comm, MPI_Request *);
int MPI_Keyval_create(MPI_Copy_function *, MPI_Delete_function *, int *, void *);
int MPI_Keyval_free(int *);
int MPI_Lookup_name(const char *, MPI_Info, char *);
MPI_Fint MPI_Message_c2f(MPI_Message);
MPI_Message MPI_Message_f2c(MPI_Fint);
MPI_Message MPI_Message_fromint(int);
int MPI_Message_toint(MPI_Message);
int MPI_Mprobe(int, int, MPI_Comm, MPI_Message *, MPI_Status *);
int MPI_Mrecv(void *, int, MPI_Datatype, MPI_Message *, MPI_Status *);
int MPI_Mrecv_c(void *, MPI_Count, MPI_Datatype, MPI_Message *, MPI_Status *);
int MPI_Neighbor_allgather(const void *, int, MPI_Datatype, void *, int, MPI_Datatype, MPI_Comm);
int MPI_Neighbor_allgather_c(const void *, MPI_Count, MPI_Datatype, void *, MPI_Count, MPI_Datatype, MPI_Comm);
int MPI_Neighbor_allgather_init(const void *, int, MPI_Datatype, void *, int, MPI_Datatype, MPI_Comm, MPI_Info,
    MPI_Request *);
int MPI_Neighbor_allgather_init_c(const void *, MPI_Count, MPI_Datatype, void *, MPI_Count, MPI_Datatype, MPI_Comm,
    MPI_Info, MPI_Request *);
int MPI_Neighbor_allgatherv(const void *, int, MPI_Datatype, void *, const int[], const int[], MPI_Datatype, MPI_Comm);
int MPI_Neighbor_allgatherv_c(const void *, MPI_Count, MPI_Datatype, void *, const MPI_Count[], const MPI_Aint[],
    MPI_Datatype, MPI_Comm);
int MPI_Neighbor_allgatherv_init(const void *, int, MPI_Datatype, void *, const int[], const int[], MPI_Datatype,
    MPI_Comm, MPI_Info, MPI_Request *);
int MPI_Neighbor_allgatherv_init_c(const void *, MPI_Count, MPI_Datatype, void *, const MPI_Count[], const MPI_Aint[],
    MPI_Datatype, MPI_Comm, MPI_Info, MPI_Request *);
int MPI_Neighbor_alltoall(const void *, int, MPI_Datatype, void *, int, MPI_Datatype, MPI_Comm);
int MPI_Neighbor_alltoall_c(const void *, MPI_Count, MPI_Datatype, void *, MPI_Count, MPI_Datatype, MPI_Comm);
int MPI_Neighbor_alltoall_init(const void *, int, MPI_Datatype, void *, int, MPI_Datatype, MPI_Comm, MPI_Info,
    MPI_Request *);
int MPI_Neighbor_alltoall_init_c(const void *, MPI_Count, MPI_Datatype, void *, MPI_Count, MPI_Datatype, MPI_Comm,
    MPI_Info, MPI_Request *);
int MPI_Neighbor_alltoallv(const void *, const int[], const int[], MPI_Datatype, void *, const int[], const int[],
    MPI_Datatype, MPI_Comm);
int MPI_Neighbor_alltoallv_c(const void *, const MPI_Count[], const MPI_Aint[], MPI_Datatype, void *,
    const MPI_Count[], const MPI_Aint[], MPI_Datatype, MPI_Comm);
int MPI_Neighbor_alltoallv_init(const void *, const int[], const int[], MPI_Datatype, void *, const int[],
    const int[], MPI_Datatype, MPI_Comm, MPI_Info, MPI_Request *);
int MPI_Neighbor_alltoallv_init_c(const void *, const MPI_Count[], const MPI_Aint[], MPI_Datatype, void *,
    const MPI_Count[], const MPI_Aint[], MPI_Datatype, MPI_Comm, MPI_Info, MPI_Request *);
int MPI_Neighbor_alltoallw(const void *, const int[], const MPI_Aint[], const MPI_Datatype[], void *, const int[],
    const MPI_Aint[], const MPI_Datatype[], MPI_Comm);
int MPI_Neighbor_alltoallw_c(const void *, const MPI_Count[], const MPI_Aint[], const MPI_Datatype[], void *,
    const MPI_Count[], const MPI_Aint[], const MPI_Datatype[], MPI_Comm);
int MPI_Neighbor_alltoallw_init(const void *, const int[], const MPI_Aint[], const MPI_Datatype[], void *,
    const int[], const MPI_Aint[], const MPI_Datatype[], MPI_Comm, MPI_Info, MPI_Request *);
int MPI_Neighbor_alltoallw_init_c(const void *, const MPI_Count[], const MPI_Aint[], const MPI_Datatype[], void *,
    const MPI_Count[], const MPI_Aint[], const MPI_Datatype[], MPI_Comm, MPI_Info, MPI_Request *);
MPI_Fint MPI_Op_c2f(MPI_Op);
int MPI_Op_commutative(MPI_Op, int *);
int MPI_Op_create(MPI_User_function *, int, MPI_Op *);
int MPI_Op_create_c(MPI_User_function_c *, int, MPI_Op *);
MPI_Op MPI_Op_f2c(MPI_Fint);
int MPI_Op_free(MPI_Op *);
MPI_Op MPI_Op_fromint(int);
int MPI_Op_toint(MPI_Op);
int MPI_Open_port(MPI_Info, char *);
int MPI_Pack(const void *, int, MPI_Datatype, void *, int, int *, MPI_Comm);
int MPI_Pack_c(const void *, MPI_Count, MPI_Datatype, void *, MPI_Count, MPI_Count *, MPI_Comm);
int MPI_Pack_external(const char *, const void *, int, MPI_Datatype, void *, MPI_Aint, MPI_Aint *);
int MPI_Pack_external_c(const char *, const void *, MPI_Count, MPI_Datatype, void *, MPI_Count, MPI_Count *);
int MPI_Pack_external_size(const char *, int, MPI_Datatype, MPI_Aint *);
int MPI_Pack_external_size_c(const char *, MPI_Count, MPI_Datatype, MPI_Count *);
int MPI_Pack_size(int, MPI_Datatype, MPI_Comm, int *);
int MPI_Pack_size_c(MPI_Count, MPI_Datatype, MPI_Comm, MPI_Count *);
int MPI_Parrived(MPI_Request, int, int *);
int MPI_Pcontrol(const int, ...);
int MPI_Pready(int, MPI_Request);
int MPI_Pready_list(int, const int *, MPI_Request);
int MPI_Pready_range(int, int, MPI_Request);
int MPI_Precv_init(void *, int, MPI_Count, MPI_Datatype, int, int, MPI_Comm, MPI_Info, MPI_Request *);
int MPI_Probe(int, int, MPI_Comm, MPI_Status *);
int MPI_Psend_init(const void *, int, MPI_Count, MPI_Datatype, int, int, MPI_Comm, MPI_Info, MPI_Request *);
int MPI_Publish_name(const char *, MPI_Info, const char *);
int MPI_Put(const void *, int, MPI_Datatype, int, MPI_Aint, int, MPI_Datatype, MPI_Win);
int MPI_Put_c(const void *, MPI_Count, MPI_Datatype, int, MPI_Aint, MPI_Count, MPI_Datatype, MPI_Win);
int MPI_Query_thread(int *);
int MPI_Raccumulate(const void *, int, MPI_Datatype, int, MPI_Aint, int, MPI_Datatype, MPI_Op, MPI_Win, MPI_Request *);
int MPI_Raccumulate_c(const void *, MPI_Count, MPI_Datatype, int, MPI_Aint, MPI_Count, MPI_Datatype, MPI_Op, MPI_Win,
    MPI_Request *);
int MPI_Recv(void *, int, MPI_Datatype, int, int, MPI_Comm, MPI_Status *);
int MPI_Recv_c(void *, MPI_Count, MPI_Datatype, int, int, MPI_Comm, MPI_Status *);
int MPI_Recv_init(void *, int, MPI_Datatype, int, int, MPI_Comm, MPI_Request *);
int MPI_Recv_init_c(void *, MPI_Count, MPI_Datatype, int, int, MPI_Comm, MPI_Request *);
int MPI_Reduce(const void *, void *, int, MPI_Datatype, MPI_Op, int, MPI_Comm);
int MPI_Reduce_c(const void *, void *, MPI_Count, MPI_Datatype, MPI_Op, int, MPI_Comm);
int MPI_Reduce_init(const void *, void *, int, MPI_Datatype, MPI_Op, int, MPI_Comm, MPI_Info, MPI_Request *);
int MPI_Reduce_init_c(const void *, void *, MPI_Count, MPI_Datatype, MPI_Op, int, MPI_Comm, MPI_Info, MPI_Request *);
int MPI_Reduce_local(const void *, void *, int, MPI_Datatype, MPI_Op);
int MPI_Reduce_local_c(const void *, void *, MPI_Count, MPI_Datatype, MPI_Op);
int MPI_Reduce_scatter(const void *, void *, const int[], MPI_Datatype, MPI_Op, MPI_Comm);
int MPI_Reduce_scatter_block(const void *, void *, int, MPI_Datatype, MPI_Op, MPI_Comm);
int MPI_Reduce_scatter_block_c(const void *, void *, MPI_Count, MPI_Datatype, MPI_Op, MPI_Comm);
int MPI_Reduce_scatter_block_init(const void *, void *, int, MPI_Datatype, MPI_Op, MPI_Comm, MPI_Info, MPI_Request *);
int MPI_Reduce_scatter_block_init_c(const void *, void *, MPI_Count, MPI_Datatype, MPI_Op, MPI_Comm, MPI_Info,
    MPI_Request *);
int MPI_Reduce_scatter_c(const void *, void *, const MPI_Count[], MPI_Datatype, MPI_Op, MPI_Comm);
int MPI_Reduce_scatter_init(const void *, void *, const int[], MPI_Datatype, MPI_Op, MPI_Comm, MPI_Info, MPI_Request *);
int MPI_Reduce_scatter_init_c(const void *, void *, const MPI_Count[], MPI_Datatype, MPI_Op, MPI_Comm, MPI_Info,
    MPI_Request *);
int MPI_Register_datarep(const char *, MPI_Datarep_conversion_function *, MPI_Datarep_conversion_function *,
    MPI_Datarep_extent_function *, void *);
int MPI_Register_datarep_c(const char *, MPI_Datarep_conversion_function_c *, MPI_Datarep_conversion_function_c *,
    MPI_Datarep_extent_function *, void *);
int MPI_Remove_error_class(int);
int MPI_Remove_error_code(int);
int MPI_Remove_error_string(int);
MPI_Fint MPI_Request_c2f(MPI_Request);
MPI_Request MPI_Request_f2c(MPI_Fint);
int MPI_Request_free(MPI_Request *);
MPI_Request MPI_Request_fromint(int);
int MPI_Request_get_status(MPI_Request, int *, MPI_Status *);
int MPI_Request_get_status_all(int, const MPI_Request *, int *, MPI_Status *);
int MPI_Request_get_status_any(int, const MPI_Request *, int *, int *, MPI_Status *);
int MPI_Request_get_status_some(int, const MPI_Request *, int *, int *, MPI_Status *);
int MPI_Request_toint(MPI_Request);
int MPI_Rget(void *, int, MPI_Datatype, int, MPI_Aint, int, MPI_Datatype, MPI_Win, MPI_Request *);
int MPI_Rget_accumulate(const void *, int, MPI_Datatype, void *, int, MPI_Datatype, int, MPI_Aint, int, MPI_Datatype,
    MPI_Op, MPI_Win, MPI_Request *);
int MPI_Rget_accumulate_c(const void *, MPI_Count, MPI_Datatype, void *, MPI_Count, MPI_Datatype, int, MPI_Aint,
    MPI_Count, MPI_Datatype, MPI_Op, MPI_Win, MPI_Request *);
int MPI_Rget_c(void *, MPI_Count, MPI_Datatype, int, MPI_Aint, MPI_Count, MPI_Datatype, MPI_Win, MPI_Request *);
int MPI_Rput(const void *, int, MPI_Datatype, int, MPI_Aint, int, MPI_Datatype, MPI_Win, MPI_Request *);
int MPI_Rput_c(const void *, MPI_Count, MPI_Datatype, int, MPI_Aint, MPI_Count, MPI_Datatype, MPI_Win, MPI_Request *);
int MPI_Rsend(const void *, int, MPI_Datatype, int, int, MPI_Comm);
int MPI_Rsend_c(const void *, MPI_Count, MPI_Datatype, int, int, MPI_Comm);
int MPI_Rsend_init(const void *, int, MPI_Datatype, int, int, MPI_Comm, MPI_Request *);
int MPI_Rsend_init_c(const void *, MPI_Count, MPI_Datatype, int, int, MPI_Comm, MPI_Request *);
int MPI_Scan(const void *, void *, int, MPI_Datatype, MPI_Op, MPI_Comm);
int MPI_Scan_c(const void *, void *, MPI_Count, MPI_Datatype, MPI_Op, MPI_Comm);
int MPI_Scan_init(const void *, void *, int, MPI_Datatype, MPI_Op, MPI_Comm, MPI_Info, MPI_Request *);
int MPI_Scan_init_c(const void *, void *, MPI_Count, MPI_Datatype, MPI_Op, MPI_Comm, MPI_Info, MPI_Request *);
int MPI_Scatter(const void *, int, MPI_Datatype, void *, int, MPI_Datatype, int, MPI_Comm);
int MPI_Scatter_c(const void *, MPI_Count, MPI_Datatype, void *, MPI_Count, MPI_Datatype, int, MPI_Comm);
int MPI_Scatter_init(const void *, int, MPI_Datatype, void *, int, MPI_Datatype, int, MPI_Comm, MPI_Info,
    MPI_Request *);
int MPI_Scatter_init_c(const void *, MPI_Count, MPI_Datatype, void *, MPI_Count, MPI_Datatype, int, MPI_Comm,
    MPI_Info, MPI_Request *);
int MPI_Scatterv(const void *, const int[], const int[], MPI_Datatype, void *, int, MPI_Datatype, int, MPI_Comm);
int MPI_Scatterv_c(const void *, const MPI_Count[], const MPI_Aint[], MPI_Datatype, void *, MPI_Count, MPI_Datatype,
    int, MPI_Comm);
int MPI_Scatterv_init(const void *, const int[], const int[], MPI_Datatype, void *, int, MPI_Datatype, int, MPI_Comm,
    MPI_Info, MPI_Request *);
int MPI_Scatterv_init_c(const void *, const MPI_Count[], const MPI_Aint[], MPI_Datatype, void *, MPI_Count,
    MPI_Datatype, int, MPI_Comm, MPI_Info, MPI_Request *);
int MPI_Send(const void *, int, MPI_Datatype, int, int, MPI_Comm);
int MPI_Send_c(const void *, MPI_Count, MPI_Datatype, int, int, MPI_Comm);
int MPI_Send_init(const void *, int, MPI_Datatype, int, int, MPI_Comm, MPI_Request *);
int MPI_Send_init_c(const void *, MPI_Count, MPI_Datatype, int, int, MPI_Comm, MPI_Request *);
int MPI_Sendrecv(const void *, int, MPI_Datatype, int, int, void *, int, MPI_Datatype, int, int, MPI_Comm,
    MPI_Status *);
int MPI_Sendrecv_c(const void *, MPI_Count, MPI_Datatype, int, int, void *, MPI_Count, MPI_Datatype, int, int,
    MPI_Comm, MPI_Status *);
int MPI_Sendrecv_replace(void *, int, MPI_Datatype, int, int, int, int, MPI_Comm, MPI_Status *);
int MPI_Sendrecv_replace_c(void *, MPI_Count, MPI_Datatype, int, int, int, int, MPI_Comm, MPI_Status *);
int MPI_Session_attach_buffer(MPI_Session, void *, int);
int MPI_Session_attach_buffer_c(MPI_Session, void *, MPI_Count);
MPI_Fint MPI_Session_c2f(MPI_Session);
int MPI_Session_call_errhandler(MPI_Session, int);
int MPI_Session_create_errhandler(MPI_Session_errhandler_function *, MPI_Errhandler *);
int MPI_Session_detach_buffer(MPI_Session, void *, int *);
int MPI_Session_detach_buffer_c(MPI_Session, void *, MPI_Count *);
MPI_Session MPI_Session_f2c(MPI_Fint);
int MPI_Session_finalize(MPI_Session *);
int MPI_Session_flush_buffer(MPI_Session);
MPI_Session MPI_Session_fromint(int);
int MPI_Session_get_errhandler(MPI_Session, MPI_Errhandler *);
int MPI_Session_get_info(MPI_Session, MPI_Info *);
int MPI_Session_get_nth_pset(MPI_Session, MPI_Info, int, int *, char *);
int MPI_Session_get_num_psets(MPI_Session, MPI_Info, int *);
int MPI_Session_get_pset_info(MPI_Session, const char *, MPI_Info *);
int MPI_Session_iflush_buffer(MPI_Session, MPI_Request *);
int MPI_Session_init(MPI_Info, MPI_Errhandler, MPI_Session *);
int MPI_Session_set_errhandler(MPI_Session, MPI_Errhandler);
int MPI_Session_toint(MPI_Session);
int MPI_Ssend(const void *, int, MPI_Datatype, int, int, MPI_Comm);
int MPI_Ssend_c(const void *, MPI_Count, MPI_Datatype, int, int, MPI_Comm);
int MPI_Ssend_init(const void *, int, MPI_Datatype, int, int, MPI_Comm, MPI_Request *);
int MPI_Ssend_init_c(const void *, MPI_Count, MPI_Datatype, int, int, MPI_Comm, MPI_Request *);
int MPI_Start(MPI_Request *);
int MPI_Startall(int, MPI_Request[]);
int MPI_Status_c2f(const MPI_Status *, MPI_Fint *);
int MPI_Status_f2c(const MPI_Fint *, MPI_Status *);
int MPI_Status_get_error(const MPI_Status *, int *);
int MPI_Status_get_source(const MPI_Status *, int *);
int MPI_Status_get_tag(const MPI_Status *, int *);
int MPI_Status_set_cancelled(MPI_Status *, int);
int MPI_Status_set_elements(MPI_Status *, MPI_Datatype, int);
int MPI_Status_set_elements_c(MPI_Status *, MPI_Datatype, MPI_Count);
int MPI_Status_set_elements_x(MPI_Status *, MPI_Datatype, MPI_Count);
int MPI_Status_set_error(MPI_Status *, int);
int MPI_Status_set_source(MPI_Status *, int);
int MPI_Status_set_tag(MPI_Status *, int);
int MPI_T_category_changed(int *);
int MPI_T_category_get_categories(int, int, int *);
int MPI_T_category_get_cvars(int, int, int *);
int MPI_T_category_get_events(int, int, int *);
int MPI_T_category_get_index(const char *, int *);
int MPI_T_category_get_info(int, char *, int *, char *, int *, int *, int *, int *);
int MPI_T_category_get_num(int *);
int MPI_T_category_get_num_events(int, int *);
int MPI_T_category_get_pvars(int, int, int *);
int MPI_T_cvar_get_index(const char *, int *);
int MPI_T_cvar_get_info(int, char *, int *, int *, MPI_Datatype *, MPI_T_enum *, char *, int *, int *, int *);
int MPI_T_cvar_get_num(int *);
int MPI_T_cvar_handle_alloc(int, void *, MPI_T_cvar_handle *, int *);
int MPI_T_cvar_handle_free(MPI_T_cvar_handle *);
int MPI_T_cvar_read(MPI_T_cvar_handle, void *);
int MPI_T_cvar_write(MPI_T_cvar_handle, const void *);
int MPI_T_enum_get_info(MPI_T_enum, int *, char *, int *);
int MPI_T_enum_get_item(MPI_T_enum, int, int *, char *, int *);
int MPI_T_event_callback_get_info(MPI_T_event_registration, MPI_T_cb_safety, MPI_Info *);
int MPI_T_event_callback_set_info(MPI_T_event_registration, MPI_T_cb_safety, MPI_Info);
int MPI_T_event_copy(MPI_T_event_instance, void *);
int MPI_T_event_get_index(const char *, int *);
int MPI_T_event_get_info(int, char *, int *, int *, MPI_Datatype *, MPI_Aint *, int *, MPI_T_enum *, MPI_Info *, char
    *, int *, int *);
int MPI_T_event_get_num(int *);
int MPI_T_event_get_source(MPI_T_event_instance, int *);
int MPI_T_event_get_timestamp(MPI_T_event_instance, MPI_Count *);
int MPI_T_event_handle_alloc(int, void *, MPI_Info, MPI_T_event_registration *);
int MPI_T_event_handle_free(MPI_T_event_registration, void *, MPI_T_event_free_cb_function);
int MPI_T_event_handle_get_info(MPI_T_event_registration, MPI_Info *);
int MPI_T_event_handle_set_info(MPI_T_event_registration, MPI_Info);
int MPI_T_event_read(MPI_T_event_instance, int, void *);
int MPI_T_event_register_callback(MPI_T_event_registration, MPI_T_cb_safety, MPI_Info, void *,
    MPI_T_event_cb_function);
int MPI_T_event_set_dropped_handler(MPI_T_event_registration, MPI_T_event_dropped_cb_function);
int MPI_T_finalize(void);
int MPI_T_init_thread(int, int *);
int MPI_T_pvar_get_index(const char *, int, int *);
int MPI_T_pvar_get_info(int, char *, int *, int *, int *, MPI_Datatype *, MPI_T_enum *, char *, int *, int *, int *,
    int *, int *);
int MPI_T_pvar_get_num(int *);
int MPI_T_pvar_handle_alloc(MPI_T_pvar_session, int, void *, MPI_T_pvar_handle *, int *);
int MPI_T_pvar_handle_free(MPI_T_pvar_session, MPI_T_pvar_handle *);
int MPI_T_pvar_read(MPI_T_pvar_session, MPI_T_pvar_handle, void *);
int MPI_T_pvar_readreset(MPI_T_pvar_session, MPI_T_pvar_handle, void *);
int MPI_T_pvar_reset(MPI_T_pvar_session, MPI_T_pvar_handle);
int MPI_T_pvar_session_create(MPI_T_pvar_session *);
int MPI_T_pvar_session_free(MPI_T_pvar_session *);
int MPI_T_pvar_start(MPI_T_pvar_session, MPI_T_pvar_handle);
int MPI_T_pvar_stop(MPI_T_pvar_session, MPI_T_pvar_handle);
int MPI_T_pvar_write(MPI_T_pvar_session, MPI_T_pvar_handle, const void *);
int MPI_T_source_get_info(int, char *, int *, char *, int *, MPI_T_source_order *, MPI_Count *, MPI_Count *, MPI_Info
    *);
int MPI_T_source_get_num(int *);
int MPI_T_source_get_timestamp(int, MPI_Count *);
int MPI_Test(MPI_Request *, int *, MPI_Status *);
int MPI_Test_cancelled(const MPI_Status *, int *);
int MPI_Testall(int, MPI_Request[], int *, MPI_Status *);
int MPI_Testany(int, MPI_Request[], int *, int *, MPI_Status *);
int MPI_Testsome(int, MPI_Request[], int *, int[], MPI_Status *);
int MPI_Topo_test(MPI_Comm, int *);
MPI_Fint MPI_Type_c2f(MPI_Datatype);
int MPI_Type_commit(MPI_Datatype *);
int MPI_Type_contiguous(int, MPI_Datatype, MPI_Datatype *);
int MPI_Type_contiguous_c(MPI_Count, MPI_Datatype, MPI_Datatype *);
int MPI_Type_create_darray(int, int, int, const int[], const int[], const int[], const int[], int, MPI_Datatype,
    MPI_Datatype *);
int MPI_Type_create_darray_c(int, int, int, const MPI_Count[], const int[], const int[], const int[], int,
    MPI_Datatype, MPI_Datatype *);
int MPI_Type_create_f90_complex(int, int, MPI_Datatype *);
int MPI_Type_create_f90_integer(int, MPI_Datatype *);
int MPI_Type_create_f90_real(int, int, MPI_Datatype *);
int MPI_Type_create_hindexed(int, const int[], const MPI_Aint[], MPI_Datatype, MPI_Datatype *);
int MPI_Type_create_hindexed_block(int, int, const MPI_Aint[], MPI_Datatype, MPI_Datatype *);
int MPI_Type_create_hindexed_block_c(MPI_Count, MPI_Count, const MPI_Count[], MPI_Datatype, MPI_Datatype *);
int MPI_Type_create_hindexed_c(MPI_Count, const MPI_Count[], const MPI_Count[], MPI_Datatype, MPI_Datatype *);
int MPI_Type_create_hvector(int, int, MPI_Aint, MPI_Datatype, MPI_Datatype *);
int MPI_Type_create_hvector_c(MPI_Count, MPI_Count, MPI_Count, MPI_Datatype, MPI_Datatype *);
int MPI_Type_create_indexed_block(int, int, const int[], MPI_Datatype, MPI_Datatype *);
int MPI_Type_create_indexed_block_c(MPI_Count, MPI_Count, const MPI_Count[], MPI_Datatype, MPI_Datatype *);
int MPI_Type_create_keyval(MPI_Type_copy_attr_function *, MPI_Type_delete_attr_function *, int *, void *);
int MPI_Type_create_resized(MPI_Datatype, MPI_Aint, MPI_Aint, MPI_Datatype *);
int MPI_Type_create_resized_c(MPI_Datatype, MPI_Count, MPI_Count, MPI_Datatype *);
int MPI_Type_create_struct(int, const int[], const MPI_Aint[], const MPI_Datatype[], MPI_Datatype *);
int MPI_Type_create_struct_c(MPI_Count, const MPI_Count[], const MPI_Count[], const MPI_Datatype[], MPI_Datatype *);
int MPI_Type_create_subarray(int, const int[], const int[], const int[], int, MPI_Datatype, MPI_Datatype *);
int MPI_Type_create_subarray_c(int, const MPI_Count[], const MPI_Count[], const MPI_Count[], int, MPI_Datatype,
    MPI_Datatype *);
int MPI_Type_delete_attr(MPI_Datatype, int);
int MPI_Type_dup(MPI_Datatype, MPI_Datatype *);
MPI_Datatype MPI_Type_f2c(MPI_Fint);
int MPI_Type_free(MPI_Datatype *);
int MPI_Type_free_keyval(int *);
MPI_Datatype MPI_Type_fromint(int);
int MPI_Type_get_attr(MPI_Datatype, int, void *, int *);
int MPI_Type_get_contents(MPI_Datatype, int, int, int, int[], MPI_Aint[], MPI_Datatype[]);
int MPI_Type_get_contents_c(MPI_Datatype, MPI_Count, MPI_Count, MPI_Count, MPI_Count, int[], MPI_Aint[], MPI_Count[],
    MPI_Datatype[]);
int MPI_Type_get_envelope(MPI_Datatype, int *, int *, int *, int *);
int MPI_Type_get_envelope_c(MPI_Datatype, MPI_Count *, MPI_Count *, MPI_Count *, MPI_Count *, int *);
int MPI_Type_get_extent(MPI_Datatype, MPI_Aint *, MPI_Aint *);
int MPI_Type_get_extent_c(MPI_Datatype, MPI_Count *, MPI_Count *);
int MPI_Type_get_extent_x(MPI_Datatype, MPI_Count *, MPI_Count *);
int MPI_Type_get_name(MPI_Datatype, char *, int *);
int MPI_Type_get_true_extent(MPI_Datatype, MPI_Aint *, MPI_Aint *);
int MPI_Type_get_true_extent_c(MPI_Datatype, MPI_Count *, MPI_Count *);
int MPI_Type_get_true_extent_x(MPI_Datatype, MPI_Count *, MPI_Count *);
int MPI_Type_get_value_index(MPI_Datatype, MPI_Datatype, MPI_Datatype *);
int MPI_Type_indexed(int, const int[], const int[], MPI_Datatype, MPI_Datatype *);
int MPI_Type_indexed_c(MPI_Count, const MPI_Count[], const MPI_Count[], MPI_Datatype, MPI_Datatype *);
int MPI_Type_match_size(int, int, MPI_Datatype *);
int MPI_Type_set_attr(MPI_Datatype, int, void *);
int MPI_Type_set_name(MPI_Datatype, const char *);
int MPI_Type_size(MPI_Datatype, int *);
int MPI_Type_size_c(MPI_Datatype, MPI_Count *);
int MPI_Type_size_x(MPI_Datatype, MPI_Count *);
int MPI_Type_toint(MPI_Datatype);
int MPI_Type_vector(int, int, int, MPI_Datatype, MPI_Datatype *);
int MPI_Type_vector_c(MPI_Count, MPI_Count, MPI_Count, MPI_Datatype, MPI_Datatype *);
int MPI_Unpack(const void *, int, int *, void *, int, MPI_Datatype, MPI_Comm);
int MPI_Unpack_c(const void *, MPI_Count, MPI_Count *, void *, MPI_Count, MPI_Datatype, MPI_Comm);
int MPI_Unpack_external(const char[], const void *, MPI_Aint, MPI_Aint *, void *, int, MPI_Datatype);
int MPI_Unpack_external_c(const char *, const void *, MPI_Count, MPI_Count *, void *, MPI_Count, MPI_Datatype);
int MPI_Unpublish_name(const char *, MPI_Info, const char *);
int MPI_Wait(MPI_Request *, MPI_Status *);
int MPI_Waitall(int, MPI_Request[], MPI_Status *);
int MPI_Waitany(int, MPI_Request[], int *, MPI_Status *);
int MPI_Waitsome(int, MPI_Request[], int *, int[], MPI_Status *);
int MPI_Win_allocate(MPI_Aint, int, MPI_Info, MPI_Comm, void *, MPI_Win *);
int MPI_Win_allocate_c(MPI_Aint, MPI_Aint, MPI_Info, MPI_Comm, void *, MPI_Win *);
int MPI_Win_allocate_shared(MPI_Aint, int, MPI_Info, MPI_Comm, void *, MPI_Win *);
int MPI_Win_allocate_shared_c(MPI_Aint, MPI_Aint, MPI_Info, MPI_Comm, void *, MPI_Win *);
int MPI_Win_attach(MPI_Win, void *, MPI_Aint);
MPI_Fint MPI_Win_c2f(MPI_Win);
int MPI_Win_call_errhandler(MPI_Win, int);
int MPI_Win_complete(MPI_Win);
int MPI_Win_create(void *, MPI_Aint, int, MPI_Info, MPI_Comm, MPI_Win *);
int MPI_Win_create_c(void *, MPI_Aint, MPI_Aint, MPI_Info, MPI_Comm, MPI_Win *);
int MPI_Win_create_dynamic(MPI_Info, MPI_Comm, MPI_Win *);
int MPI_Win_create_errhandler(MPI_Win_errhandler_function *, MPI_Errhandler *);
int MPI_Win_create_keyval(MPI_Win_copy_attr_function *, MPI_Win_delete_attr_function *, int *, void *);
int MPI_Win_delete_attr(MPI_Win, int);
int MPI_Win_detach(MPI_Win, const void *);
MPI_Win MPI_Win_f2c(MPI_Fint);
int MPI_Win_fence(int, MPI_Win);
int MPI_Win_flush(int, MPI_Win);
int MPI_Win_flush_all(MPI_Win);
int MPI_Win_flush_local(int, MPI_Win);
int MPI_Win_flush_local_all(MPI_Win);
int MPI_Win_free(MPI_Win *);
int MPI_Win_free_keyval(int *);
MPI_Win MPI_Win_fromint(int);
int MPI_Win_get_attr(MPI_Win, int, void *, int *);
int MPI_Win_get_errhandler(MPI_Win, MPI_Errhandler *);
int MPI_Win_get_group(MPI_Win, MPI_Group *);
int MPI_Win_get_info(MPI_Win, MPI_Info *);
int MPI_Win_get_name(MPI_Win, char *, int *);
int MPI_Win_lock(int, int, int, MPI_Win);
int MPI_Win_lock_all(int, MPI_Win);
int MPI_Win_post(MPI_Group, int, MPI_Win);
int MPI_Win_set_attr(MPI_Win, int, void *);
int MPI_Win_set_errhandler(MPI_Win, MPI_Errhandler);
int MPI_Win_set_info(MPI_Win, MPI_Info);
int MPI_Win_set_name(MPI_Win, const char *);
int MPI_Win_shared_query(MPI_Win, int, MPI_Aint *, int *, void *);
int MPI_Win_shared_query_c(MPI_Win, int, MPI_Aint *, MPI_Aint *, void *);
int MPI_Win_start(MPI_Group, int, MPI_Win);
int MPI_Win_sync(MPI_Win);
int MPI_Win_test(MPI_Win, int *);
int MPI_Win_toint(MPI_Win);
int MPI_Win_unlock(int, MPI_Win);
int MPI_Win_unlock_all(MPI_Win);
int MPI_Win_wait(MPI_Win);
double MPI_Wtick(void);
double MPI_Wtime(void);

/* The same functions, for tools that define those above. */

int PMPI_Abi_get_fortran_booleans(int, void *, void *, int *);
int PMPI_Abi_get_fortran_info(MPI_Info *);
int PMPI_Abi_get_info(MPI_Info *);
int PMPI_Abi_get_version(int *, int *);
int PMPI_Abi_set_fortran_booleans(int, void *, void *);
int PMPI_Abi_set_fortran_info(MPI_Info);
int PMPI_Abort(MPI_Comm, int);
int PMPI_Accumulate(const void *, int, MPI_Datatype, int, MPI_Aint, int, MPI_Datatype, MPI_Op, MPI_Win);
int PMPI_Accumulate_c(const void *, MPI_Count, MPI_Datatype, int, MPI_Aint, MPI_Count, MPI_Datatype, MPI_Op, MPI_Win);
int PMPI_Add_error_class(int *);
int PMPI_Add_error_code(int, int *);
int PMPI_Add_error_string(int, const char *);
MPI_Aint PMPI_Aint_add(MPI_Aint, MPI_Aint);
MPI_Aint PMPI_Aint_diff(MPI_Aint, MPI_Aint);
int PMPI_Allgather(const void *, int, MPI_Datatype, void *, int, MPI_Datatype, MPI_Comm);
int PMPI_Allgather_c(const void *, MPI_Count, MPI_Datatype, void *, MPI_Count, MPI_Datatype, MPI_Comm);
int PMPI_Allgather_init(const void *, int, MPI_Datatype, void *, int, MPI_Datatype, MPI_Comm, MPI_Info, MPI_Request *);
int PMPI_Allgather_init_c(const void *, MPI_Count, MPI_Datatype, void *, MPI_Count, MPI_Datatype, MPI_Comm, MPI_Info,
    MPI_Request *);
int PMPI_Allgatherv(const void *, int, MPI_Datatype, void *, const int[], const int[], MPI_Datatype, MPI_Comm);
int PMPI_Allgatherv_c(const void *, MPI_Count, MPI_Datatype, void *, const MPI_Count[], const MPI_Aint[],
    MPI_Datatype, MPI_Comm);
int PMPI_Allgatherv_init(const void *, int, MPI_Datatype, void *, const int[], const int[], MPI_Datatype, MPI_Comm,
    MPI_Info, MPI_Request *);
int PMPI_Allgatherv_init_c(const void *, MPI_Count, MPI_Datatype, void *, const MPI_Count[], const MPI_Aint[],
    MPI_Datatype, MPI_Comm, MPI_Info, MPI_Request *);
int PMPI_Alloc_mem(MPI_Aint, MPI_Info, void *);
int PMPI_Allreduce(const void *, void *, int, MPI_Datatype, MPI_Op, MPI_Comm);
int PMPI_Allreduce_c(const void *, void *, MPI_Count, MPI_Datatype, MPI_Op, MPI_Comm);
int PMPI_Allreduce_init(const void *, void *, int, MPI_Datatype, MPI_Op, MPI_Comm, MPI_Info, MPI_Request *);
int PMPI_Allreduce_init_c(const void *, void *, MPI_Count, MPI_Datatype, MPI_Op, MPI_Comm, MPI_Info, MPI_Request *);
int PMPI_Alltoall(const void *, int, MPI_Datatype, void *, int, MPI_Datatype, MPI_Comm);
int PMPI_Alltoall_c(const void *, MPI_Count, MPI_Datatype, void *, MPI_Count, MPI_Datatype, MPI_Comm);
int PMPI_Alltoall_init(const void *, int, MPI_Datatype, void *, int, MPI_Datatype, MPI_Comm, MPI_Info, MPI_Request *);
int PMPI_Alltoall_init_c(const void *, MPI_Count, MPI_Datatype, void *, MPI_Count, MPI_Datatype, MPI_Comm, MPI_Info,
    MPI_Request *);
int PMPI_Alltoallv(const void *, const int[], const int[], MPI_Datatype, void *, const int[], const int[],
    MPI_Datatype, MPI_Comm);
int PMPI_Alltoallv_c(const void *, const MPI_Count[], const MPI_Aint[], MPI_Datatype, void *, const MPI_Count[],
    const MPI_Aint[], MPI_Datatype, MPI_Comm);
int PMPI_Alltoallv_init(const void *, const int[], const int[], MPI_Datatype, void *, const int[], const int[],
    MPI_Datatype, MPI_Comm, MPI_Info, MPI_Request *);
int PMPI_Alltoallv_init_c(const void *, const MPI_Count[], const MPI_Aint[], MPI_Datatype, void *, const MPI_Count[],
    const MPI_Aint[], MPI_Datatype, MPI_Comm, MPI_Info, MPI_Request *);
int PMPI_Alltoallw(const void *, const int[], const int[], const MPI_Datatype[], void *, const int[], const int[],
    const MPI_Datatype[], MPI_Comm);
int PMPI_Alltoallw_c(const void *, const MPI_Count[], const MPI_Aint[], const MPI_Datatype[], void *,
    const MPI_Count[], const MPI_Aint[], const MPI_Datatype[], MPI_Comm);
int PMPI_Alltoallw_init(const void *, const int[], const int[], const MPI_Datatype[], void *, const int[],
    const int[], const MPI_Datatype[], MPI_Comm, MPI_Info, MPI_Request *);
int PMPI_Alltoallw_init_c(const void *, const MPI_Count[], const MPI_Aint[], const MPI_Datatype[], void *,
    const MPI_Count[], const MPI_Aint[], const MPI_Datatype[], MPI_Comm, MPI_Info, MPI_Request *);
int PMPI_Attr_delete(MPI_Comm, int);
int PMPI_Attr_get(MPI_Comm, int, void *, int *);
int PMPI_Attr_put(MPI_Comm, int, void *);
int PMPI_Barrier(MPI_Comm);
int PMPI_Barrier_init(MPI_Comm, MPI_Info, MPI_Request *);
int PMPI_Bcast(void *, int, MPI_Datatype, int, MPI_Comm);
int PMPI_Bcast_c(void *, MPI_Count, MPI_Datatype, int, MPI_Comm);
int PMPI_Bcast_init(void *, int, MPI_Datatype, int, MPI_Comm, MPI_Info, MPI_Request *);
int PMPI_Bcast_init_c(void *, MPI_Count, MPI_Datatype, int, MPI_Comm, MPI_Info, MPI_Request *);
int PMPI_Bsend(const void *, int, MPI_Datatype, int, int, MPI_Comm);
int PMPI_Bsend_c(const void *, MPI_Count, MPI_Datatype, int, int, MPI_Comm);
int PMPI_Bsend_init(const void *, int, MPI_Datatype, int, int, MPI_Comm, MPI_Request *);
int PMPI_Bsend_init_c(const void *, MPI_Count, MPI_Datatype, int, int, MPI_Comm, MPI_Request *);
int PMPI_Buffer_attach(void *, int);
int PMPI_Buffer_attach_c(void *, MPI_Count);
int PMPI_Buffer_detach(void *, int *);
int PMPI_Buffer_detach_c(void *, MPI_Count *);
int PMPI_Buffer_flush(void);
int PMPI_Buffer_iflush(MPI_Request *);
int PMPI_Cancel(MPI_Request *);
int PMPI_Cart_coords(MPI_Comm, int, int, int[]);
int PMPI_Cart_create(MPI_Comm, int, const int[], const int[], int, MPI_Comm *);
int PMPI_Cart_get(MPI_Comm, int, int[], int[], int[]);
int PMPI_Cart_map(MPI_Comm, int, const int[], const int[], int *);
int PMPI_Cart_rank(MPI_Comm, const int[], int *);
int PMPI_Cart_shift(MPI_Comm, int, int, int *, int *);
int PMPI_Cart_sub(MPI_Comm, const int[], MPI_Comm *);
int PMPI_Cartdim_get(MPI_Comm, int *);
int PMPI_Close_port(const char *);
int PMPI_Comm_accept(const char *, MPI_Info, int, MPI_Comm, MPI_Comm *);
int PMPI_Comm_attach_buffer(MPI_Comm, void *, int);
int PMPI_Comm_attach_buffer_c(MPI_Comm, void *, MPI_Count);
MPI_Fint PMPI_Comm_c2f(MPI_Comm);
int PMPI_Comm_call_errhandler(MPI_Comm, int);
int PMPI_Comm_compare(MPI_Comm, MPI_Comm, int *);
int PMPI_Comm_connect(const char *, MPI_Info, int, MPI_Comm, MPI_Comm *);
int PMPI_Comm_create(MPI_Comm, MPI_Group, MPI_Comm *);
int PMPI_Comm_create_errhandler(MPI_Comm_errhandler_function *, MPI_Errhandler *);
int PMPI_Comm_create_from_group(MPI_Group, const char *, MPI_Info, MPI_Errhandler, MPI_Comm *);
int PMPI_Comm_create_group(MPI_Comm, MPI_Group, int, MPI_Comm *);
int PMPI_Comm_create_keyval(MPI_Comm_copy_attr_function *, MPI_Comm_delete_attr_function *, int *, void *);
int PMPI_Comm_delete_attr(MPI_Comm, int);
int PMPI_Comm_detach_buffer(MPI_Comm, void *, int *);
int PMPI_Comm_detach_buffer_c(MPI_Comm, void *, MPI_Count *);
int PMPI_Comm_disconnect(MPI_Comm *);
int PMPI_Comm_dup(MPI_Comm, MPI_Comm *);
int PMPI_Comm_dup_with_info(MPI_Comm, MPI_Info, MPI_Comm *);
MPI_Comm PMPI_Comm_f2c(MPI_Fint);
int PMPI_Comm_flush_buffer(MPI_Comm);
int PMPI_Comm_free(MPI_Comm *);
int PMPI_Comm_free_keyval(int *);
MPI_Comm PMPI_Comm_fromint(int);
int PMPI_Comm_get_attr(MPI_Comm, int, void *, int *);
int PMPI_Comm_get_errhandler(MPI_Comm, MPI_Errhandler *);
int PMPI_Comm_get_info(MPI_Comm, MPI_Info *);
int PMPI_Comm_get_name(MPI_Comm, char *, int *);
int PMPI_Comm_get_parent(MPI_Comm *);
int PMPI_Comm_group(MPI_Comm, MPI_Group *);
int PMPI_Comm_idup(MPI_Comm, MPI_Comm *, MPI_Request *);
int PMPI_Comm_idup_with_info(MPI_Comm, MPI_Info, MPI_Comm *, MPI_Request *);
int PMPI_Comm_iflush_buffer(MPI_Comm, MPI_Request *);
int PMPI_Comm_join(int, MPI_Comm *);
int PMPI_Comm_rank(MPI_Comm, int *);
int PMPI_Comm_remote_group(MPI_Comm, MPI_Group *);
int PMPI_Comm_remote_size(MPI_Comm, int *);
int PMPI_Comm_set_attr(MPI_Comm, int, void *);
int PMPI_Comm_set_errhandler(MPI_Comm, MPI_Errhandler);
int PMPI_Comm_set_info(MPI_Comm, MPI_Info);
int PMPI_Comm_set_name(MPI_Comm, const char *);
int PMPI_Comm_size(MPI_Comm, int *);
int PMPI_Comm_spawn(const char *, char *[], int, MPI_Info, int, MPI_Comm, MPI_Comm *, int[]);
int PMPI_Comm_spawn_multiple(int, char *[], char **[], const int[], const MPI_Info[], int, MPI_Comm, MPI_Comm *, int[]);
int PMPI_Comm_split(MPI_Comm, int, int, MPI_Comm *);
int PMPI_Comm_split_type(MPI_Comm, int, int, MPI_Info, MPI_Comm *);
int PMPI_Comm_test_inter(MPI_Comm, int *);
int PMPI_Comm_toint(MPI_Comm);
int PMPI_Compare_and_swap(const void *, const void *, void *, MPI_Datatype, int, MPI_Aint, MPI_Win);
int PMPI_Dims_create(int, int, int[]);
int PMPI_Dist_graph_create(MPI_Comm, int, const int[], const int[], const int[], const int *, MPI_Info, int,
    MPI_Comm *);
int PMPI_Dist_graph_create_adjacent(MPI_Comm, int, const int[], const int *, int, const int[], const int *, MPI_Info,
    int, MPI_Comm *);
int PMPI_Dist_graph_neighbors(MPI_Comm, int, int[], int *, int, int[], int *);
int PMPI_Dist_graph_neighbors_count(MPI_Comm, int *, int *, int *);
MPI_Fint PMPI_Errhandler_c2f(MPI_Errhandler);
MPI_Errhandler PMPI_Errhandler_f2c(MPI_Fint);
int PMPI_Errhandler_free(MPI_Errhandler *);
MPI_Errhandler PMPI_Errhandler_fromint(int);
int PMPI_Errhandler_toint(MPI_Errhandler);
int PMPI_Error_class(int, int *);
int PMPI_Error_string(int, char *, int *);
int PMPI_Exscan(const void *, void *, int, MPI_Datatype, MPI_Op, MPI_Comm);
int PMPI_Exscan_c(const void *, void *, MPI_Count, MPI_Datatype, MPI_Op, MPI_Comm);
int PMPI_Exscan_init(const void *, void *, int, MPI_Datatype, MPI_Op, MPI_Comm, MPI_Info, MPI_Request *);
int PMPI_Exscan_init_c(const void *, void *, MPI_Count, MPI_Datatype, MPI_Op, MPI_Comm, MPI_Info, MPI_Request *);
int PMPI_Fetch_and_op(const void *, void *, MPI_Datatype, int, MPI_Aint, MPI_Op, MPI_Win);
MPI_Fint PMPI_File_c2f(MPI_File);
int PMPI_File_call_errhandler(MPI_File, int);
int PMPI_File_close(MPI_File *);
int PMPI_File_create_errhandler(MPI_File_errhandler_function *, MPI_Errhandler *);
int PMPI_File_delete(const char *, MPI_Info);
MPI_File PMPI_File_f2c(MPI_Fint);
MPI_File PMPI_File_fromint(int);
int PMPI_File_get_amode(MPI_File, int *);
int PMPI_File_get_atomicity(MPI_File, int *);
int PMPI_File_get_byte_offset(MPI_File, MPI_Offset, MPI_Offset *);
int PMPI_File_get_errhandler(MPI_File, MPI_Errhandler *);
int PMPI_File_get_group(MPI_File, MPI_Group *);
int PMPI_File_get_info(MPI_File, MPI_Info *);
int PMPI_File_get_position(MPI_File, MPI_Offset *);
int PMPI_File_get_position_shared(MPI_File, MPI_Offset *);
int PMPI_File_get_size(MPI_File, MPI_Offset *);
int PMPI_File_get_type_extent(MPI_File, MPI_Datatype, MPI_Aint *);
int PMPI_File_get_type_extent_c(MPI_File, MPI_Datatype, MPI_Count *);
int PMPI_File_get_view(MPI_File, MPI_Offset *, MPI_Datatype *, MPI_Datatype *, char *);
int PMPI_File_iread(MPI_File, void *, int, MPI_Datatype, MPI_Request *);
int PMPI_File_iread_all(MPI_File, void *, int, MPI_Datatype, MPI_Request *);
int PMPI_File_iread_all_c(MPI_File, void *, MPI_Count, MPI_Datatype, MPI_Request *);
int PMPI_File_iread_at(MPI_File, MPI_Offset, void *, int, MPI_Datatype, MPI_Request *);
int PMPI_File_iread_at_all(MPI_File, MPI_Offset, void *, int, MPI_Datatype, MPI_Request *);
int PMPI_File_iread_at_all_c(MPI_File, MPI_Offset, void *, MPI_Count, MPI_Datatype, MPI_Request *);
int PMPI_File_iread_at_c(MPI_File, MPI_Offset, void *, MPI_Count, MPI_Datatype, MPI_Request *);
int PMPI_File_iread_c(MPI_File, void *, MPI_Count, MPI_Datatype, MPI_Request *);
int PMPI_File_iread_shared(MPI_File, void *, int, MPI_Datatype, MPI_Request *);
int PMPI_File_iread_shared_c(MPI_File, void *, MPI_Count, MPI_Datatype, MPI_Request *);
int PMPI_File_iwrite(MPI_File, const void *, int, MPI_Datatype, MPI_Request *);
int PMPI_File_iwrite_all(MPI_File, const void *, int, MPI_Datatype, MPI_Request *);
int PMPI_File_iwrite_all_c(MPI_File, const void *, MPI_Count, MPI_Datatype, MPI_Request *);
int PMPI_File_iwrite_at(MPI_File, MPI_Offset, const void *, int, MPI_Datatype, MPI_Request *);
int PMPI_File_iwrite_at_all(MPI_File, MPI_Offset, const void *, int, MPI_Datatype, MPI_Request *);
int PMPI_File_iwrite_at_all_c(MPI_File, MPI_Offset, const void *, MPI_Count, MPI_Datatype, MPI_Request *);
int PMPI_File_iwrite_at_c(MPI_File, MPI_Offset, const void *, MPI_Count, MPI_Datatype, MPI_Request *);
int PMPI_File_iwrite_c(MPI_File, const void *, MPI_Count, MPI_Datatype, MPI_Request *);
int PMPI_File_iwrite_shared(MPI_File, const void *, int, MPI_Datatype, MPI_Request *);
int PMPI_File_iwrite_shared_c(MPI_File, const void *, MPI_Count, MPI_Datatype, MPI_Request *);
int PMPI_File_open(MPI_Comm, const char *, int, MPI_Info, MPI_File *);
int PMPI_File_preallocate(MPI_File, MPI_Offset);
int PMPI_File_read(MPI_File, void *, int, MPI_Datatype, MPI_Status *);
int PMPI_File_read_all(MPI_File, void *, int, MPI_Datatype, MPI_Status *);
int PMPI_File_read_all_begin(MPI_File, void *, int, MPI_Datatype);
int PMPI_File_read_all_begin_c(MPI_File, void *, MPI_Count, MPI_Datatype);
int PMPI_File_read_all_c(MPI_File, void *, MPI_Count, MPI_Datatype, MPI_Status *);
int PMPI_File_read_all_end(MPI_File, void *, MPI_Status *);
int PMPI_File_read_at(MPI_File, MPI_Offset, void *, int, MPI_Datatype, MPI_Status *);
int PMPI_File_read_at_all(MPI_File, MPI_Offset, void *, int, MPI_Datatype, MPI_Status *);
int PMPI_File_read_at_all_begin(MPI_File, MPI_Offset, void *, int, MPI_Datatype);
int PMPI_File_read_at_all_begin_c(MPI_File, MPI_Offset, void *, MPI_Count, MPI_Datatype);
int PMPI_File_read_at_all_c(MPI_File, MPI_Offset, void *, MPI_Count, MPI_Datatype, MPI_Status *);
int PMPI_File_read_at_all_end(MPI_File, void *, MPI_Status *);
int PMPI_File_read_at_c(MPI_File, MPI_Offset, void *, MPI_Count, MPI_Datatype, MPI_Status *);
int PMPI_File_read_c(MPI_File, void *, MPI_Count, MPI_Datatype, MPI_Status *);
int PMPI_File_read_ordered(MPI_File, void *, int, MPI_Datatype, MPI_Status *);
int PMPI_File_read_ordered_begin(MPI_File, void *, int, MPI_Datatype);
int PMPI_File_read_ordered_begin_c(MPI_File, void *, MPI_Count, MPI_Datatype);
int PMPI_File_read_ordered_c(MPI_File, void *, MPI_Count, MPI_Datatype, MPI_Status *);
int PMPI_File_read_ordered_end(MPI_File, void *, MPI_Status *);
int PMPI_File_read_shared(MPI_File, void *, int, MPI_Datatype, MPI_Status *);
int PMPI_File_read_shared_c(MPI_File, void *, MPI_Count, MPI_Datatype, MPI_Status *);
int PMPI_File_seek(MPI_File, MPI_Offset, int);
int PMPI_File_seek_shared(MPI_File, MPI_Offset, int);
int PMPI_File_set_atomicity(MPI_File, int);
int PMPI_File_set_errhandler(MPI_File, MPI_Errhandler);
int PMPI_File_set_info(MPI_File, MPI_Info);
int PMPI_File_set_size(MPI_File, MPI_Offset);
int PMPI_File_set_view(MPI_File, MPI_Offset, MPI_Datatype, MPI_Datatype, const char *, MPI_Info);
int PMPI_File_sync(MPI_File);
int PMPI_File_toint(MPI_File);
int PMPI_File_write(MPI_File, const void *, int, MPI_Datatype, MPI_Status *);
int PMPI_File_write_all(MPI_File, const void *, int, MPI_Datatype, MPI_Status *);
int PMPI_File_write_all_begin(MPI_File, const void *, int, MPI_Datatype);
int PMPI_File_write_all_begin_c(MPI_File, const void *, MPI_Count, MPI_Datatype);
int PMPI_File_write_all_c(MPI_File, const void *, MPI_Count, MPI_Datatype, MPI_Status *);
int PMPI_File_write_all_end(MPI_File, const void *, MPI_Status *);
int PMPI_File_write_at(MPI_File, MPI_Offset, const void *, int, MPI_Datatype, MPI_Status *);
int PMPI_File_write_at_all(MPI_File, MPI_Offset, const void *, int, MPI_Datatype, MPI_Status *);
int PMPI_File_write_at_all_begin(MPI_File, MPI_Offset, const void *, int, MPI_Datatype);
int PMPI_File_write_at_all_begin_c(MPI_File, MPI_Offset, const void *, MPI_Count, MPI_Datatype);
int PMPI_File_write_at_all_c(MPI_File, MPI_Offset, const void *, MPI_Count, MPI_Datatype, MPI_Status *);
int PMPI_File_write_at_all_end(MPI_File, const void *, MPI_Status *);
int PMPI_File_write_at_c(MPI_File, MPI_Offset, const void *, MPI_Count, MPI_Datatype, MPI_Status *);
int PMPI_File_write_c(MPI_File, const void *, MPI_Count, MPI_Datatype, MPI_Status *);
int PMPI_File_write_ordered(MPI_File, const void *, int, MPI_Datatype, MPI_Status *);
int PMPI_File_write_ordered_begin(MPI_File, const void *, int, MPI_Datatype);
int PMPI_File_write_ordered_begin_c(MPI_File, const void *, MPI_Count, MPI_Datatype);
int PMPI_File_write_ordered_c(MPI_File, const void *, MPI_Count, MPI_Datatype, MPI_Status *);
int PMPI_File_write_ordered_end(MPI_File, const void *, MPI_Status *);
int PMPI_File_write_shared(MPI_File, const void *, int, MPI_Datatype, MPI_Status *);
int PMPI_File_write_shared_c(MPI_File, const void *, MPI_Count, MPI_Datatype, MPI_Status *);
int PMPI_Finalize(void);
int PMPI_Finalized(int *);
int PMPI_Free_mem(void *);
int PMPI_Gather(const void *, int, MPI_Datatype, void *, int, MPI_Datatype, int, MPI_Comm);
int PMPI_Gather_c(const void *, MPI_Count, MPI_Datatype, void *, MPI_Count, MPI_Datatype, int, MPI_Comm);
int PMPI_Gather_init(const void *, int, MPI_Datatype, void *, int, MPI_Datatype, int, MPI_Comm, MPI_Info,
    MPI_Request *);
int PMPI_Gather_init_c(const void *, MPI_Count, MPI_Datatype, void *, MPI_Count, MPI_Datatype, int, MPI_Comm,
    MPI_Info, MPI_Request *);
int PMPI_Gatherv(const void *, int, MPI_Datatype, void *, const int[], const int[], MPI_Datatype, int, MPI_Comm);
int PMPI_Gatherv_c(const void *, MPI_Count, MPI_Datatype, void *, const MPI_Count[], const MPI_Aint[], MPI_Datatype,
    int, MPI_Comm);
int PMPI_Gatherv_init(const void *, int, MPI_Datatype, void *, const int[], const int[], MPI_Datatype, int, MPI_Comm,
    MPI_Info, MPI_Request *);
int PMPI_Gatherv_init_c(const void *, MPI_Count, MPI_Datatype, void *, const MPI_Count[], const MPI_Aint[],
    MPI_Datatype, int, MPI_Comm, MPI_Info, MPI_Request *);
int PMPI_Get(void *, int, MPI_Datatype, int, MPI_Aint, int, MPI_Datatype, MPI_Win);
int PMPI_Get_accumulate(const void *, int, MPI_Datatype, void *, int, MPI_Datatype, int, MPI_Aint, int, MPI_Datatype,
    MPI_Op, MPI_Win);
int PMPI_Get_accumulate_c(const void *, MPI_Count, MPI_Datatype, void *, MPI_Count, MPI_Datatype, int, MPI_Aint,
    MPI_Count, MPI_Datatype, MPI_Op, MPI_Win);
int PMPI_Get_address(const void *, MPI_Aint *);
int PMPI_Get_c(void *, MPI_Count, MPI_Datatype, int, MPI_Aint, MPI_Count, MPI_Datatype, MPI_Win);
int PMPI_Get_count(const MPI_Status *, MPI_Datatype, int *);
int PMPI_Get_count_c(const MPI_Status *, MPI_Datatype, MPI_Count *);
int PMPI_Get_elements(const MPI_Status *, MPI_Datatype, int *);
int PMPI_Get_elements_c(const MPI_Status *, MPI_Datatype, MPI_Count *);
int PMPI_Get_elements_x(const MPI_Status *, MPI_Datatype, MPI_Count *);
int PMPI_Get_hw_resource_info(MPI_Info *);
int PMPI_Get_library_version(char *, int *);
int PMPI_Get_processor_name(char *, int *);
int PMPI_Get_version(int *, int *);
int PMPI_Graph_create(MPI_Comm, int, const int[], const int[], int, MPI_Comm *);
int PMPI_Graph_get(MPI_Comm, int, int, int[], int[]);
int PMPI_Graph_map(MPI_Comm, int, const int[], const int[], int *);
int PMPI_Graph_neighbors(MPI_Comm, int, int, int[]);
int PMPI_Graph_neighbors_count(MPI_Comm, int, int *);
int PMPI_Graphdims_get(MPI_Comm, int *, int *);
int PMPI_Grequest_complete(MPI_Request);
int PMPI_Grequest_start(MPI_Grequest_query_function *, MPI_Grequest_free_function *, MPI_Grequest_cancel_function *,
    void *, MPI_Request *);
MPI_Fint PMPI_Group_c2f(MPI_Group);
int PMPI_Group_compare(MPI_Group, MPI_Group, int *);
int PMPI_Group_difference(MPI_Group, MPI_Group, MPI_Group *);
int PMPI_Group_excl(MPI_Group, int, const int[], MPI_Group *);
MPI_Group PMPI_Group_f2c(MPI_Fint);
int PMPI_Group_free(MPI_Group *);
int PMPI_Group_from_session_pset(MPI_Session, const char *, MPI_Group *);
MPI_Group PMPI_Group_fromint(int);
int PMPI_Group_incl(MPI_Group, int, const int[], MPI_Group *);
int PMPI_Group_intersection(MPI_Group, MPI_Group, MPI_Group *);
int PMPI_Group_range_excl(MPI_Group, int, int[][3], MPI_Group *);
int PMPI_Group_range_incl(MPI_Group, int, int[][3], MPI_Group *);
int PMPI_Group_rank(MPI_Group, int *);
int PMPI_Group_size(MPI_Group, int *);
int PMPI_Group_toint(MPI_Group);
int PMPI_Group_translate_ranks(MPI_Group, int, const int[], MPI_Group, int[]);
int PMPI_Group_union(MPI_Group, MPI_Group, MPI_Group *);
int PMPI_Iallgather(const void *, int, MPI_Datatype, void *, int, MPI_Datatype, MPI_Comm, MPI_Request *);
int PMPI_Iallgather_c(const void *, MPI_Count, MPI_Datatype, void *, MPI_Count, MPI_Datatype, MPI_Comm, MPI_Request *);
int PMPI_Iallgatherv(const void *, int, MPI_Datatype, void *, const int[], const int[], MPI_Datatype, MPI_Comm,
    MPI_Request *);
int PMPI_Iallgatherv_c(const void *, MPI_Count, MPI_Datatype, void *, const MPI_Count[], const MPI_Aint[],
    MPI_Datatype, MPI_Comm, MPI_Request *);
int PMPI_Iallreduce(const void *, void *, int, MPI_Datatype, MPI_Op, MPI_Comm, MPI_Request *);
int PMPI_Iallreduce_c(const void *, void *, MPI_Count, MPI_Datatype, MPI_Op, MPI_Comm, MPI_Request *);
int PMPI_Ialltoall(const void *, int, MPI_Datatype, void *, int, MPI_Datatype, MPI_Comm, MPI_Request *);
int PMPI_Ialltoall_c(const void *, MPI_Count, MPI_Datatype, void *, MPI_Count, MPI_Datatype, MPI_Comm, MPI_Request *);
int PMPI_Ialltoallv(const void *, const int[], const int[], MPI_Datatype, void *, const int[], const int[],
    MPI_Datatype, MPI_Comm, MPI_Request *);
int PMPI_Ialltoallv_c(const void *, const MPI_Count[], const MPI_Aint[], MPI_Datatype, void *, const MPI_Count[],
    const MPI_Aint[], MPI_Datatype, MPI_Comm, MPI_Request *);
int PMPI_Ialltoallw(const void *, const int[], const int[], const MPI_Datatype[], void *, const int[], const int[],
    const MPI_Datatype[], MPI_Comm, MPI_Request *);
int PMPI_Ialltoallw_c(const void *, const MPI_Count[], const MPI_Aint[], const MPI_Datatype[], void *,
    const MPI_Count[], const MPI_Aint[], const MPI_Datatype[], MPI_Comm, MPI_Request *);
int PMPI_Ibarrier(MPI_Comm, MPI_Request *);
int PMPI_Ibcast(void *, int, MPI_Datatype, int, MPI_Comm, MPI_Request *);
int PMPI_Ibcast_c(void *, MPI_Count, MPI_Datatype, int, MPI_Comm, MPI_Request *);
int PMPI_Ibsend(const void *, int, MPI_Datatype, int, int, MPI_Comm, MPI_Request *);
int PMPI_Ibsend_c(const void *, MPI_Count, MPI_Datatype, int, int, MPI_Comm, MPI_Request *);
int PMPI_Iexscan(const void *, void *, int, MPI_Datatype, MPI_Op, MPI_Comm, MPI_Request *);
int PMPI_Iexscan_c(const void *, void *, MPI_Count, MPI_Datatype, MPI_Op, MPI_Comm, MPI_Request *);
int PMPI_Igather(const void *, int, MPI_Datatype, void *, int, MPI_Datatype, int, MPI_Comm, MPI_Request *);
int PMPI_Igather_c(const void *, MPI_Count, MPI_Datatype, void *, MPI_Count, MPI_Datatype, int, MPI_Comm,
    MPI_Request *);
int PMPI_Igatherv(const void *, int, MPI_Datatype, void *, const int[], const int[], MPI_Datatype, int, MPI_Comm,
    MPI_Request *);
int PMPI_Igatherv_c(const void *, MPI_Count, MPI_Datatype, void *, const MPI_Count[], const MPI_Aint[], MPI_Datatype,
    int, MPI_Comm, MPI_Request *);
int PMPI_Improbe(int, int, MPI_Comm, int *, MPI_Message *, MPI_Status *);
int PMPI_Imrecv(void *, int, MPI_Datatype, MPI_Message *, MPI_Request *);
int PMPI_Imrecv_c(void *, MPI_Count, MPI_Datatype, MPI_Message *, MPI_Request *);
int PMPI_Ineighbor_allgather(const void *, int, MPI_Datatype, void *, int, MPI_Datatype, MPI_Comm, MPI_Request *);
int PMPI_Ineighbor_allgather_c(const void *, MPI_Count, MPI_Datatype, void *, MPI_Count, MPI_Datatype, MPI_Comm,
    MPI_Request *);
int PMPI_Ineighbor_allgatherv(const void *, int, MPI_Datatype, void *, const int[], const int[], MPI_Datatype,
    MPI_Comm, MPI_Request *);
int PMPI_Ineighbor_allgatherv_c(const void *, MPI_Count, MPI_Datatype, void *, const MPI_Count[], const MPI_Aint[],
    MPI_Datatype, MPI_Comm, MPI_Request *);
int PMPI_Ineighbor_alltoall(const void *, int, MPI_Datatype, void *, int, MPI_Datatype, MPI_Comm, MPI_Request *);
int PMPI_Ineighbor_alltoall_c(const void *, MPI_Count, MPI_Datatype, void *, MPI_Count, MPI_Datatype, MPI_Comm,
    MPI_Request *);
int PMPI_Ineighbor_alltoallv(const void *, const int[], const int[], MPI_Datatype, void *, const int[], const int[],
    MPI_Datatype, MPI_Comm, MPI_Request *);
int PMPI_Ineighbor_alltoallv_c(const void *, const MPI_Count[], const MPI_Aint[], MPI_Datatype, void *,
    const MPI_Count[], const MPI_Aint[], MPI_Datatype, MPI_Comm, MPI_Request *);
int PMPI_Ineighbor_alltoallw(const void *, const int[], const MPI_Aint[], const MPI_Datatype[], void *, const int[],
    const MPI_Aint[], const MPI_Datatype[], MPI_Comm, MPI_Request *);
int PMPI_Ineighbor_alltoallw_c(const void *, const MPI_Count[], const MPI_Aint[], const MPI_Datatype[], void *,
    const MPI_Count[], const MPI_Aint[], const MPI_Datatype[], MPI_Comm, MPI_Request *);
MPI_Fint PMPI_Info_c2f(MPI_Info);
int PMPI_Info_create(MPI_Info *);
int PMPI_Info_create_env(int, char *[], MPI_Info *);
int PMPI_Info_delete(MPI_Info, const char *);
int PMPI_Info_dup(MPI_Info, MPI_Info *);
MPI_Info PMPI_Info_f2c(MPI_Fint);
int PMPI_Info_free(MPI_Info *);
MPI_Info PMPI_Info_fromint(int);
int PMPI_Info_get(MPI_Info, const char *, int, char *, int *);
int PMPI_Info_get_nkeys(MPI_Info, int *);
int PMPI_Info_get_nthkey(MPI_Info, int, char *);
int PMPI_Info_get_string(MPI_Info, const char *, int *, char *, int *);
int PMPI_Info_get_valuelen(MPI_Info, const char *, int *, int *);
int PMPI_Info_set(MPI_Info, const char *, const char *);
int PMPI_Info_toint(MPI_Info);
int PMPI_Init(int *, char ***);
int PMPI_Init_thread(int *, char ***, int, int *);
int PMPI_Initialized(int *);
int PMPI_Intercomm_create(MPI_Comm, int, MPI_Comm, int, int, MPI_Comm *);
int PMPI_Intercomm_create_from_groups(MPI_Group, int, MPI_Group, int, const char *, MPI_Info, MPI_Errhandler,
    MPI_Comm *);
int PMPI_Intercomm_merge(MPI_Comm, int, MPI_Comm *);
int PMPI_Iprobe(int, int, MPI_Comm, int *, MPI_Status *);
int PMPI_Irecv(void *, int, MPI_Datatype, int, int, MPI_Comm, MPI_Request *);
int PMPI_Irecv_c(void *, MPI_Count, MPI_Datatype, int, int, MPI_Comm, MPI_Request *);
int PMPI_Ireduce(const void *, void *, int, MPI_Datatype, MPI_Op, int, MPI_Comm, MPI_Request *);
int PMPI_Ireduce_c(const void *, void *, MPI_Count, MPI_Datatype, MPI_Op, int, MPI_Comm, MPI_Request *);
int PMPI_Ireduce_scatter(const void *, void *, const int[], MPI_Datatype, MPI_Op, MPI_Comm, MPI_Request *);
int PMPI_Ireduce_scatter_block(const void *, void *, int, MPI_Datatype, MPI_Op, MPI_Comm, MPI_Request *);
int PMPI_Ireduce_scatter_block_c(const void *, void *, MPI_Count, MPI_Datatype, MPI_Op, MPI_Comm, MPI_Request *);
int PMPI_Ireduce_scatter_c(const void *, void *, const MPI_Count[], MPI_Datatype, MPI_Op, MPI_Comm, MPI_Request *);
int PMPI_Irsend(const void *, int, MPI_Datatype, int, int, MPI_Comm, MPI_Request *);
int PMPI_Irsend_c(const void *, MPI_Count, MPI_Datatype, int, int, MPI_Comm, MPI_Request *);
int PMPI_Is_thread_main(int *);
int PMPI_Iscan(const void *, void *, int, MPI_Datatype, MPI_Op, MPI_Comm, MPI_Request *);
int PMPI_Iscan_c(const void *, void *, MPI_Count, MPI_Datatype, MPI_Op, MPI_Comm, MPI_Request *);
int PMPI_Iscatter(const void *, int, MPI_Datatype, void *, int, MPI_Datatype, int, MPI_Comm, MPI_Request *);
int PMPI_Iscatter_c(const void *, MPI_Count, MPI_Datatype, void *, MPI_Count, MPI_Datatype, int, MPI_Comm,
    MPI_Request *);
int PMPI_Iscatterv(const void *, const int[], const int[], MPI_Datatype, void *, int, MPI_Datatype, int, MPI_Comm,
    MPI_Request *);
int PMPI_Iscatterv_c(const void *, const MPI_Count[], const MPI_Aint[], MPI_Datatype, void *, MPI_Count, MPI_Datatype,
    int, MPI_Comm, MPI_Request *);
int PMPI_Isend(const void *, int, MPI_Datatype, int, int, MPI_Comm, MPI_Request *);
int PMPI_Isend_c(const void *, MPI_Count, MPI_Datatype, int, int, MPI_Comm, MPI_Request *);
int PMPI_Isendrecv(const void *, int, MPI_Datatype, int, int, void *, int, MPI_Datatype, int, int, MPI_Comm,
    MPI_Request *);
int PMPI_Isendrecv_c(const void *, MPI_Count, MPI_Datatype, int, int, void *, MPI_Count, MPI_Datatype, int, int,
    MPI_Comm, MPI_Request *);
int PMPI_Isendrecv_replace(void *, int, MPI_Datatype, int, int, int, int, MPI_Comm, MPI_Request *);
int PMPI_Isendrecv_replace_c(void *, MPI_Count, MPI_Datatype, int, int, int, int, MPI_Comm, MPI_Request *);
int PMPI_Issend(const void *, int, MPI_Datatype, int, int, MPI_Comm, MPI_Request *);
int PMPI_Issend_c(const void *, MPI_Count, MPI_Datatype, int, int, MPI_Comm, MPI_Request *);
int PMPI_Keyval_create(MPI_Copy_function *, MPI_Delete_function *, int *, void *);
int PMPI_Keyval_free(int *);
int PMPI_Lookup_name(const char *, MPI_Info, char *);
MPI_Fint PMPI_Message_c2f(MPI_Message);
MPI_Message PMPI_Message_f2c(MPI_Fint);
MPI_Message PMPI_Message_fromint(int);
int PMPI_Message_toint(MPI_Message);
int PMPI_Mprobe(int, int, MPI_Comm, MPI_Message *, MPI_Status *);
int PMPI_Mrecv(void *, int, MPI_Datatype, MPI_Message *, MPI_Status *);
int PMPI_Mrecv_c(void *, MPI_Count, MPI_Datatype, MPI_Message *, MPI_Status *);
int PMPI_Neighbor_allgather(const void *, int, MPI_Datatype, void *, int, MPI_Datatype, MPI_Comm);
int PMPI_Neighbor_allgather_c(const void *, MPI_Count, MPI_Datatype, void *, MPI_Count, MPI_Datatype, MPI_Comm);
int PMPI_Neighbor_allgather_init(const void *, int, MPI_Datatype, void *, int, MPI_Datatype, MPI_Comm, MPI_Info,
    MPI_Request *);
int PMPI_Neighbor_allgather_init_c(const void *, MPI_Count, MPI_Datatype, void *, MPI_Count, MPI_Datatype, MPI_Comm,
    MPI_Info, MPI_Request *);
int PMPI_Neighbor_allgatherv(const void *, int, MPI_Datatype, void *, const int[], const int[], MPI_Datatype, MPI_Comm);
int PMPI_Neighbor_allgatherv_c(const void *, MPI_Count, MPI_Datatype, void *, const MPI_Count[], const MPI_Aint[],
    MPI_Datatype, MPI_Comm);
int PMPI_Neighbor_allgatherv_init(const void *, int, MPI_Datatype, void *, const int[], const int[], MPI_Datatype,
    MPI_Comm, MPI_Info, MPI_Request *);
int PMPI_Neighbor_allgatherv_init_c(const void *, MPI_Count, MPI_Datatype, void *, const MPI_Count[],
    const MPI_Aint[], MPI_Datatype, MPI_Comm, MPI_Info, MPI_Request *);
int PMPI_Neighbor_alltoall(const void *, int, MPI_Datatype, void *, int, MPI_Datatype, MPI_Comm);
int PMPI_Neighbor_alltoall_c(const void *, MPI_Count, MPI_Datatype, void *, MPI_Count, MPI_Datatype, MPI_Comm);
int PMPI_Neighbor_alltoall_init(const void *, int, MPI_Datatype, void *, int, MPI_Datatype, MPI_Comm, MPI_Info,
    MPI_Request *);
int PMPI_Neighbor_alltoall_init_c(const void *, MPI_Count, MPI_Datatype, void *, MPI_Count, MPI_Datatype, MPI_Comm,
    MPI_Info, MPI_Request *);
int PMPI_Neighbor_alltoallv(const void *, const int[], const int[], MPI_Datatype, void *, const int[], const int[],
    MPI_Datatype, MPI_Comm);
int PMPI_Neighbor_alltoallv_c(const void *, const MPI_Count[], const MPI_Aint[], MPI_Datatype, void *,
    const MPI_Count[], const MPI_Aint[], MPI_Datatype, MPI_Comm);
int PMPI_Neighbor_alltoallv_init(const void *, const int[], const int[], MPI_Datatype, void *, const int[],
    const int[], MPI_Datatype, MPI_Comm, MPI_Info, MPI_Request *);
int PMPI_Neighbor_alltoallv_init_c(const void *, const MPI_Count[], const MPI_Aint[], MPI_Datatype, void *,
    const MPI_Count[], const MPI_Aint[], MPI_Datatype, MPI_Comm, MPI_Info, MPI_Request *);
int PMPI_Neighbor_alltoallw(const void *, const int[], const MPI_Aint[], const MPI_Datatype[], void *, const int[],
    const MPI_Aint[], const MPI_Datatype[], MPI_Comm);
int PMPI_Neighbor_alltoallw_c(const void *, const MPI_Count[], const MPI_Aint[], const MPI_Datatype[], void *,
    const MPI_Count[], const MPI_Aint[], const MPI_Datatype[], MPI_Comm);
int PMPI_Neighbor_alltoallw_init(const void *, const int[], const MPI_Aint[], const MPI_Datatype[], void *,
    const int[], const MPI_Aint[], const MPI_Datatype[], MPI_Comm, MPI_Info, MPI_Request *);
int PMPI_Neighbor_alltoallw_init_c(const void *, const MPI_Count[], const MPI_Aint[], const MPI_Datatype[], void *,
    const MPI_Count[], const MPI_Aint[], const MPI_Datatype[], MPI_Comm, MPI_Info, MPI_Request *);
MPI_Fint PMPI_Op_c2f(MPI_Op);
int PMPI_Op_commutative(MPI_Op, int *);
int PMPI_Op_create(MPI_User_function *, int, MPI_Op *);
int PMPI_Op_create_c(MPI_User_function_c *, int, MPI_Op *);
MPI_Op PMPI_Op_f2c(MPI_Fint);
int PMPI_Op_free(MPI_Op *);
MPI_Op PMPI_Op_fromint(int);
int PMPI_Op_toint(MPI_Op);
int PMPI_Open_port(MPI_Info, char *);
int PMPI_Pack(const void *, int, MPI_Datatype, void *, int, int *, MPI_Comm);
int PMPI_Pack_c(const void *, MPI_Count, MPI_Datatype, void *, MPI_Count, MPI_Count *, MPI_Comm);
int PMPI_Pack_external(const char *, const void *, int, MPI_Datatype, void *, MPI_Aint, MPI_Aint *);
int PMPI_Pack_external_c(const char *, const void *, MPI_Count, MPI_Datatype, void *, MPI_Count, MPI_Count *);
int PMPI_Pack_external_size(const char *, int, MPI_Datatype, MPI_Aint *);
int PMPI_Pack_external_size_c(const char *, MPI_Count, MPI_Datatype, MPI_Count *);
int PMPI_Pack_size(int, MPI_Datatype, MPI_Comm, int *);
int PMPI_Pack_size_c(MPI_Count, MPI_Datatype, MPI_Comm, MPI_Count *);
int PMPI_Parrived(MPI_Request, int, int *);
int PMPI_Pcontrol(const int, ...);
int PMPI_Pready(int, MPI_Request);
int PMPI_Pready_list(int, const int *, MPI_Request);
int PMPI_Pready_range(int, int, MPI_Request);
int PMPI_Precv_init(void *, int, MPI_Count, MPI_Datatype, int, int, MPI_Comm, MPI_Info, MPI_Request *);
int PMPI_Probe(int, int, MPI_Comm, MPI_Status *);
int PMPI_Psend_init(const void *, int, MPI_Count, MPI_Datatype, int, int, MPI_Comm, MPI_Info, MPI_Request *);
int PMPI_Publish_name(const char *, MPI_Info, const char *);
int PMPI_Put(const void *, int, MPI_Datatype, int, MPI_Aint, int, MPI_Datatype, MPI_Win);
int PMPI_Put_c(const void *, MPI_Count, MPI_Datatype, int, MPI_Aint, MPI_Count, MPI_Datatype, MPI_Win);
int PMPI_Query_thread(int *);
int PMPI_Raccumulate(const void *, int, MPI_Datatype, int, MPI_Aint, int, MPI_Datatype, MPI_Op, MPI_Win, MPI_Request *);
int PMPI_Raccumulate_c(const void *, MPI_Count, MPI_Datatype, int, MPI_Aint, MPI_Count, MPI_Datatype, MPI_Op, MPI_Win,
    MPI_Request *);
int PMPI_Recv(void *, int, MPI_Datatype, int, int, MPI_Comm, MPI_Status *);
int PMPI_Recv_c(void *, MPI_Count, MPI_Datatype, int, int, MPI_Comm, MPI_Status *);
int PMPI_Recv_init(void *, int, MPI_Datatype, int, int, MPI_Comm, MPI_Request *);
int PMPI_Recv_init_c(void *, MPI_Count, MPI_Datatype, int, int, MPI_Comm, MPI_Request *);
int PMPI_Reduce(const void *, void *, int, MPI_Datatype, MPI_Op, int, MPI_Comm);
int PMPI_Reduce_c(const void *, void *, MPI_Count, MPI_Datatype, MPI_Op, int, MPI_Comm);
int PMPI_Reduce_init(const void *, void *, int, MPI_Datatype, MPI_Op, int, MPI_Comm, MPI_Info, MPI_Request *);
int PMPI_Reduce_init_c(const void *, void *, MPI_Count, MPI_Datatype, MPI_Op, int, MPI_Comm, MPI_Info, MPI_Request *);
int PMPI_Reduce_local(const void *, void *, int, MPI_Datatype, MPI_Op);
int PMPI_Reduce_local_c(const void *, void *, MPI_Count, MPI_Datatype, MPI_Op);
int PMPI_Reduce_scatter(const void *, void *, const int[], MPI_Datatype, MPI_Op, MPI_Comm);
int PMPI_Reduce_scatter_block(const void *, void *, int, MPI_Datatype, MPI_Op, MPI_Comm);
int PMPI_Reduce_scatter_block_c(const void *, void *, MPI_Count, MPI_Datatype, MPI_Op, MPI_Comm);
int PMPI_Reduce_scatter_block_init(const void *, void *, int, MPI_Datatype, MPI_Op, MPI_Comm, MPI_Info, MPI_Request *);
int PMPI_Reduce_scatter_block_init_c(const void *, void *, MPI_Count, MPI_Datatype, MPI_Op, MPI_Comm, MPI_Info,
    MPI_Request *);
int PMPI_Reduce_scatter_c(const void *, void *, const MPI_Count[], MPI_Datatype, MPI_Op, MPI_Comm);
int PMPI_Reduce_scatter_init(const void *, void *, const int[], MPI_Datatype, MPI_Op, MPI_Comm, MPI_Info,
    MPI_Request *);
int PMPI_Reduce_scatter_init_c(const void *, void *, const MPI_Count[], MPI_Datatype, MPI_Op, MPI_Comm, MPI_Info,
    MPI_Request *);
int PMPI_Register_datarep(const char *, MPI_Datarep_conversion_function *, MPI_Datarep_conversion_function *,
    MPI_Datarep_extent_function *, void *);
int PMPI_Register_datarep_c(const char *, MPI_Datarep_conversion_function_c *, MPI_Datarep_conversion_function_c *,
    MPI_Datarep_extent_function *, void *);
int PMPI_Remove_error_class(int);
int PMPI_Remove_error_code(int);
int PMPI_Remove_error_string(int);
MPI_Fint PMPI_Request_c2f(MPI_Request);
MPI_Request PMPI_Request_f2c(MPI_Fint);
int PMPI_Request_free(MPI_Request *);
MPI_Request PMPI_Request_fromint(int);
int PMPI_Request_get_status(MPI_Request, int *, MPI_Status *);
int PMPI_Request_get_status_all(int, const MPI_Request *, int *, MPI_Status *);
int PMPI_Request_get_status_any(int, const MPI_Request *, int *, int *, MPI_Status *);
int PMPI_Request_get_status_some(int, const MPI_Request *, int *, int *, MPI_Status *);
int PMPI_Request_toint(MPI_Request);
int PMPI_Rget(void *, int, MPI_Datatype, int, MPI_Aint, int, MPI_Datatype, MPI_Win, MPI_Request *);
int PMPI_Rget_accumulate(const void *, int, MPI_Datatype, void *, int, MPI_Datatype, int, MPI_Aint, int, MPI_Datatype,
    MPI_Op, MPI_Win, MPI_Request *);
int PMPI_Rget_accumulate_c(const void *, MPI_Count, MPI_Datatype, void *, MPI_Count, MPI_Datatype, int, MPI_Aint,
    MPI_Count, MPI_Datatype, MPI_Op, MPI_Win, MPI_Request *);
int PMPI_Rget_c(void *, MPI_Count, MPI_Datatype, int, MPI_Aint, MPI_Count, MPI_Datatype, MPI_Win, MPI_Request *);
int PMPI_Rput(const void *, int, MPI_Datatype, int, MPI_Aint, int, MPI_Datatype, MPI_Win, MPI_Request *);
int PMPI_Rput_c(const void *, MPI_Count, MPI_Datatype, int, MPI_Aint, MPI_Count, MPI_Datatype, MPI_Win, MPI_Request *);
int PMPI_Rsend(const void *, int, MPI_Datatype, int, int, MPI_Comm);
int PMPI_Rsend_c(const void *, MPI_Count, MPI_Datatype, int, int, MPI_Comm);
int PMPI_Rsend_init(const void *, int, MPI_Datatype, int, int, MPI_Comm, MPI_Request *);
int PMPI_Rsend_init_c(const void *, MPI_Count, MPI_Datatype, int, int, MPI_Comm, MPI_Request *);
int PMPI_Scan(const void *, void *, int, MPI_Datatype, MPI_Op, MPI_Comm);
int PMPI_Scan_c(const void *, void *, MPI_Count, MPI_Datatype, MPI_Op, MPI_Comm);
int PMPI_Scan_init(const void *, void *, int, MPI_Datatype, MPI_Op, MPI_Comm, MPI_Info, MPI_Request *);
int PMPI_Scan_init_c(const void *, void *, MPI_Count, MPI_Datatype, MPI_Op, MPI_Comm, MPI_Info, MPI_Request *);
int PMPI_Scatter(const void *, int, MPI_Datatype, void *, int, MPI_Datatype, int, MPI_Comm);
int PMPI_Scatter_c(const void *, MPI_Count, MPI_Datatype, void *, MPI_Count, MPI_Datatype, int, MPI_Comm);
int PMPI_Scatter_init(const void *, int, MPI_Datatype, void *, int, MPI_Datatype, int, MPI_Comm, MPI_Info,
    MPI_Request *);
int PMPI_Scatter_init_c(const void *, MPI_Count, MPI_Datatype, void *, MPI_Count, MPI_Datatype, int, MPI_Comm,
    MPI_Info, MPI_Request *);
int PMPI_Scatterv(const void *, const int[], const int[], MPI_Datatype, void *, int, MPI_Datatype, int, MPI_Comm);
int PMPI_Scatterv_c(const void *, const MPI_Count[], const MPI_Aint[], MPI_Datatype, void *, MPI_Count, MPI_Datatype,
    int, MPI_Comm);
int PMPI_Scatterv_init(const void *, const int[], const int[], MPI_Datatype, void *, int, MPI_Datatype, int, MPI_Comm,
    MPI_Info, MPI_Request *);
int PMPI_Scatterv_init_c(const void *, const MPI_Count[], const MPI_Aint[], MPI_Datatype, void *, MPI_Count,
    MPI_Datatype, int, MPI_Comm, MPI_Info, MPI_Request *);
int PMPI_Send(const void *, int, MPI_Datatype, int, int, MPI_Comm);
int PMPI_Send_c(const void *, MPI_Count, MPI_Datatype, int, int, MPI_Comm);
int PMPI_Send_init(const void *, int, MPI_Datatype, int, int, MPI_Comm, MPI_Request *);
int PMPI_Send_init_c(const void *, MPI_Count, MPI_Datatype, int, int, MPI_Comm, MPI_Request *);
int PMPI_Sendrecv(const void *, int, MPI_Datatype, int, int, void *, int, MPI_Datatype, int, int, MPI_Comm,
    MPI_Status *);
int PMPI_Sendrecv_c(const void *, MPI_Count, MPI_Datatype, int, int, void *, MPI_Count, MPI_Datatype, int, int,
    MPI_Comm, MPI_Status *);
int PMPI_Sendrecv_replace(void *, int, MPI_Datatype, int, int, int, int, MPI_Comm, MPI_Status *);
int PMPI_Sendrecv_replace_c(void *, MPI_Count, MPI_Datatype, int, int, int, int, MPI_Comm, MPI_Status *);
int PMPI_Session_attach_buffer(MPI_Session, void *, int);
int PMPI_Session_attach_buffer_c(MPI_Session, void *, MPI_Count);
MPI_Fint PMPI_Session_c2f(MPI_Session);
int PMPI_Session_call_errhandler(MPI_Session, int);
int PMPI_Session_create_errhandler(MPI_Session_errhandler_function *, MPI_Errhandler *);
int PMPI_Session_detach_buffer(MPI_Session, void *, int *);
int PMPI_Session_detach_buffer_c(MPI_Session, void *, MPI_Count *);
MPI_Session PMPI_Session_f2c(MPI_Fint);
int PMPI_Session_finalize(MPI_Session *);
int PMPI_Session_flush_buffer(MPI_Session);
MPI_Session PMPI_Session_fromint(int);
int PMPI_Session_get_errhandler(MPI_Session, MPI_Errhandler *);
int PMPI_Session_get_info(MPI_Session, MPI_Info *);
int PMPI_Session_get_nth_pset(MPI_Session, MPI_Info, int, int *, char *);
int PMPI_Session_get_num_psets(MPI_Session, MPI_Info, int *);
int PMPI_Session_get_pset_info(MPI_Session, const char *, MPI_Info *);
int PMPI_Session_iflush_buffer(MPI_Session, MPI_Request *);
int PMPI_Session_init(MPI_Info, MPI_Errhandler, MPI_Session *);
int PMPI_Session_set_errhandler(MPI_Session, MPI_Errhandler);
int PMPI_Session_toint(MPI_Session);
int PMPI_Ssend(const void *, int, MPI_Datatype, int, int, MPI_Comm);
int PMPI_Ssend_c(const void *, MPI_Count, MPI_Datatype, int, int, MPI_Comm);
int PMPI_Ssend_init(const void *, int, MPI_Datatype, int, int, MPI_Comm, MPI_Request *);
int PMPI_Ssend_init_c(const void *, MPI_Count, MPI_Datatype, int, int, MPI_Comm, MPI_Request *);
int PMPI_Start(MPI_Request *);
int PMPI_Startall(int, MPI_Request[]);
int PMPI_Status_c2f(const MPI_Status *, MPI_Fint *);
int PMPI_Status_f2c(const MPI_Fint *, MPI_Status *);
int PMPI_Status_get_error(const MPI_Status *, int *);
int PMPI_Status_get_source(const MPI_Status *, int *);
int PMPI_Status_get_tag(const MPI_Status *, int *);
int PMPI_Status_set_cancelled(MPI_Status *, int);
int PMPI_Status_set_elements(MPI_Status *, MPI_Datatype, int);
int PMPI_Status_set_elements_c(MPI_Status *, MPI_Datatype, MPI_Count);
int PMPI_Status_set_elements_x(MPI_Status *, MPI_Datatype, MPI_Count);
int PMPI_Status_set_error(MPI_Status *, int);
int PMPI_Status_set_source(MPI_Status *, int);
int PMPI_Status_set_tag(MPI_Status *, int);
int PMPI_T_category_changed(int *);
int PMPI_T_category_get_categories(int, int, int *);
int PMPI_T_category_get_cvars(int, int, int *);
int PMPI_T_category_get_events(int, int, int *);
int PMPI_T_category_get_index(const char *, int *);
int PMPI_T_category_get_info(int, char *, int *, char *, int *, int *, int *, int *);
int PMPI_T_category_get_num(int *);
int PMPI_T_category_get_num_events(int, int *);
int PMPI_T_category_get_pvars(int, int, int *);
int PMPI_T_cvar_get_index(const char *, int *);
int PMPI_T_cvar_get_info(int, char *, int *, int *, MPI_Datatype *, MPI_T_enum *, char *, int *, int *, int *);
int PMPI_T_cvar_get_num(int *);
int PMPI_T_cvar_handle_alloc(int, void *, MPI_T_cvar_handle *, int *);
int PMPI_T_cvar_handle_free(MPI_T_cvar_handle *);
int PMPI_T_cvar_read(MPI_T_cvar_handle, void *);
int PMPI_T_cvar_write(MPI_T_cvar_handle, const void *);
int PMPI_T_enum_get_info(MPI_T_enum, int *, char *, int *);
int PMPI_T_enum_get_item(MPI_T_enum, int, int *, char *, int *);
int PMPI_T_event_callback_get_info(MPI_T_event_registration, MPI_T_cb_safety, MPI_Info *);
int PMPI_T_event_callback_set_info(MPI_T_event_registration, MPI_T_cb_safety, MPI_Info);
int PMPI_T_event_copy(MPI_T_event_instance, void *);
int PMPI_T_event_get_index(const char *, int *);
int PMPI_T_event_get_info(int, char *, int *, int *, MPI_Datatype *, MPI_Aint *, int *, MPI_T_enum *, MPI_Info *, char
    *, int *, int *);
int PMPI_T_event_get_num(int *);
int PMPI_T_event_get_source(MPI_T_event_instance, int *);
int PMPI_T_event_get_timestamp(MPI_T_event_instance, MPI_Count *);
int PMPI_T_event_handle_alloc(int, void *, MPI_Info, MPI_T_event_registration *);
int PMPI_T_event_handle_free(MPI_T_event_registration, void *, MPI_T_event_free_cb_function);
int PMPI_T_event_handle_get_info(MPI_T_event_registration, MPI_Info *);
int PMPI_T_event_handle_set_info(MPI_T_event_registration, MPI_Info);
int PMPI_T_event_read(MPI_T_event_instance, int, void *);
int PMPI_T_event_register_callback(MPI_T_event_registration, MPI_T_cb_safety, MPI_Info, void *,
    MPI_T_event_cb_function);
int PMPI_T_event_set_dropped_handler(MPI_T_event_registration, MPI_T_event_dropped_cb_function);
int PMPI_T_finalize(void);
int PMPI_T_init_thread(int, int *);
int PMPI_T_pvar_get_index(const char *, int, int *);
int PMPI_T_pvar_get_info(int, char *, int *, int *, int *, MPI_Datatype *, MPI_T_enum *, char *, int *, int *, int *,
    int *, int *);
int PMPI_T_pvar_get_num(int *);
int PMPI_T_pvar_handle_alloc(MPI_T_pvar_session, int, void *, MPI_T_pvar_handle *, int *);
int PMPI_T_pvar_handle_free(MPI_T_pvar_session, MPI_T_pvar_handle *);
int PMPI_T_pvar_read(MPI_T_pvar_session, MPI_T_pvar_handle, void *);
int PMPI_T_pvar_readreset(MPI_T_pvar_session, MPI_T_pvar_handle, void *);
int PMPI_T_pvar_reset(MPI_T_pvar_session, MPI_T_pvar_handle);
int PMPI_T_pvar_session_create(MPI_T_pvar_session *);
int PMPI_T_pvar_session_free(MPI_T_pvar_session *);
int PMPI_T_pvar_start(MPI_T_pvar_session, MPI_T_pvar_handle);
int PMPI_T_pvar_stop(MPI_T_pvar_session, MPI_T_pvar_handle);
int PMPI_T_pvar_write(MPI_T_pvar_session, MPI_T_pvar_handle, const void *);
int PMPI_T_source_get_info(int, char *, int *, char *, int *, MPI_T_source_order *, MPI_Count *, MPI_Count *, MPI_Info
    *);
int PMPI_T_source_get_num(int *);
int PMPI_T_source_get_timestamp(int, MPI_Count *);
int PMPI_Test(MPI_Request *, int *, MPI_Status *);
int PMPI_Test_cancelled(const MPI_Status *, int *);
int PMPI_Testall(int, MPI_Request[], int *, MPI_Status *);
int PMPI_Testany(int, MPI_Request[], int *, int *, MPI_Status *);
int PMPI_Testsome(int, MPI_Request[], int *, int[], MPI_Status *);
int PMPI_Topo_test(MPI_Comm, int *);
MPI_Fint PMPI_Type_c2f(MPI_Datatype);
int PMPI_Type_commit(MPI_Datatype *);
int PMPI_Type_contiguous(int, MPI_Datatype, MPI_Datatype *);
int PMPI_Type_contiguous_c(MPI_Count, MPI_Datatype, MPI_Datatype *);
int PMPI_Type_create_darray(int, int, int, const int[], const int[], const int[], const int[], int, MPI_Datatype,
    MPI_Datatype *);
int PMPI_Type_create_darray_c(int, int, int, const MPI_Count[], const int[], const int[], const int[], int,
    MPI_Datatype, MPI_Datatype *);
int PMPI_Type_create_f90_complex(int, int, MPI_Datatype *);
int PMPI_Type_create_f90_integer(int, MPI_Datatype *);
int PMPI_Type_create_f90_real(int, int, MPI_Datatype *);
int PMPI_Type_create_hindexed(int, const int[], const MPI_Aint[], MPI_Datatype, MPI_Datatype *);
int PMPI_Type_create_hindexed_block(int, int, const MPI_Aint[], MPI_Datatype, MPI_Datatype *);
int PMPI_Type_create_hindexed_block_c(MPI_Count, MPI_Count, const MPI_Count[], MPI_Datatype, MPI_Datatype *);
int PMPI_Type_create_hindexed_c(MPI_Count, const MPI_Count[], const MPI_Count[], MPI_Datatype, MPI_Datatype *);
int PMPI_Type_create_hvector(int, int, MPI_Aint, MPI_Datatype, MPI_Datatype *);
int PMPI_Type_create_hvector_c(MPI_Count, MPI_Count, MPI_Count, MPI_Datatype, MPI_Datatype *);
int PMPI_Type_create_indexed_block(int, int, const int[], MPI_Datatype, MPI_Datatype *);
int PMPI_Type_create_indexed_block_c(MPI_Count, MPI_Count, const MPI_Count[], MPI_Datatype, MPI_Datatype *);
int PMPI_Type_create_keyval(MPI_Type_copy_attr_function *, MPI_Type_delete_attr_function *, int *, void *);
int PMPI_Type_create_resized(MPI_Datatype, MPI_Aint, MPI_Aint, MPI_Datatype *);
int PMPI_Type_create_resized_c(MPI_Datatype, MPI_Count, MPI_Count, MPI_Datatype *);
int PMPI_Type_create_struct(int, const int[], const MPI_Aint[], const MPI_Datatype[], MPI_Datatype *);
int PMPI_Type_create_struct_c(MPI_Count, const MPI_Count[], const MPI_Count[], const MPI_Datatype[], MPI_Datatype *);
int PMPI_Type_create_subarray(int, const int[], const int[], const int[], int, MPI_Datatype, MPI_Datatype *);
int PMPI_Type_create_subarray_c(int, const MPI_Count[], const MPI_Count[], const MPI_Count[], int, MPI_Datatype,
    MPI_Datatype *);
int PMPI_Type_delete_attr(MPI_Datatype, int);
int PMPI_Type_dup(MPI_Datatype, MPI_Datatype *);
MPI_Datatype PMPI_Type_f2c(MPI_Fint);
int PMPI_Type_free(MPI_Datatype *);
int PMPI_Type_free_keyval(int *);
MPI_Datatype PMPI_Type_fromint(int);
int PMPI_Type_get_attr(MPI_Datatype, int, void *, int *);
int PMPI_Type_get_contents(MPI_Datatype, int, int, int, int[], MPI_Aint[], MPI_Datatype[]);
int PMPI_Type_get_contents_c(MPI_Datatype, MPI_Count, MPI_Count, MPI_Count, MPI_Count, int[], MPI_Aint[], MPI_Count[],
    MPI_Datatype[]);
int PMPI_Type_get_envelope(MPI_Datatype, int *, int *, int *, int *);
int PMPI_Type_get_envelope_c(MPI_Datatype, MPI_Count *, MPI_Count *, MPI_Count *, MPI_Count *, int *);
int PMPI_Type_get_extent(MPI_Datatype, MPI_Aint *, MPI_Aint *);
int PMPI_Type_get_extent_c(MPI_Datatype, MPI_Count *, MPI_Count *);
int PMPI_Type_get_extent_x(MPI_Datatype, MPI_Count *, MPI_Count *);
int PMPI_Type_get_name(MPI_Datatype, char *, int *);
int PMPI_Type_get_true_extent(MPI_Datatype, MPI_Aint *, MPI_Aint *);
int PMPI_Type_get_true_extent_c(MPI_Datatype, MPI_Count *, MPI_Count *);
int PMPI_Type_get_true_extent_x(MPI_Datatype, MPI_Count *, MPI_Count *);
int PMPI_Type_get_value_index(MPI_Datatype, MPI_Datatype, MPI_Datatype *);
int PMPI_Type_indexed(int, const int[], const int[], MPI_Datatype, MPI_Datatype *);
int PMPI_Type_indexed_c(MPI_Count, const MPI_Count[], const MPI_Count[], MPI_Datatype, MPI_Datatype *);
int PMPI_Type_match_size(int, int, MPI_Datatype *);
int PMPI_Type_set_attr(MPI_Datatype, int, void *);
int PMPI_Type_set_name(MPI_Datatype, const char *);
int PMPI_Type_size(MPI_Datatype, int *);
int PMPI_Type_size_c(MPI_Datatype, MPI_Count *);
int PMPI_Type_size_x(MPI_Datatype, MPI_Count *);
int PMPI_Type_toint(MPI_Datatype);
int PMPI_Type_vector(int, int, int, MPI_Datatype, MPI_Datatype *);
int PMPI_Type_vector_c(MPI_Count, MPI_Count, MPI_Count, MPI_Datatype, MPI_Datatype *);
int PMPI_Unpack(const void *, int, int *, void *, int, MPI_Datatype, MPI_Comm);
int PMPI_Unpack_c(const void *, MPI_Count, MPI_Count *, void *, MPI_Count, MPI_Datatype, MPI_Comm);
int PMPI_Unpack_external(const char[], const void *, MPI_Aint, MPI_Aint *, void *, int, MPI_Datatype);
int PMPI_Unpack_external_c(const char *, const void *, MPI_Count, MPI_Count *, void *, MPI_Count, MPI_Datatype);
int PMPI_Unpublish_name(const char *, MPI_Info, const char *);
int PMPI_Wait(MPI_Request *, MPI_Status *);
int PMPI_Waitall(int, MPI_Request[], MPI_Status *);
int PMPI_Waitany(int, MPI_Request[], int *, MPI_Status *);
int PMPI_Waitsome(int, MPI_Request[], int *, int[], MPI_Status *);
int PMPI_Win_allocate(MPI_Aint, int, MPI_Info, MPI_Comm, void *, MPI_Win *);
int PMPI_Win_allocate_c(MPI_Aint, MPI_Aint, MPI_Info, MPI_Comm, void *, MPI_Win *);
int PMPI_Win_allocate_shared(MPI_Aint, int, MPI_Info, MPI_Comm, void *, MPI_Win *);
int PMPI_Win_allocate_shared_c(MPI_Aint, MPI_Aint, MPI_Info, MPI_Comm, void *, MPI_Win *);
int PMPI_Win_attach(MPI_Win, void *, MPI_Aint);
MPI_Fint PMPI_Win_c2f(MPI_Win);
int PMPI_Win_call_errhandler(MPI_Win, int);
int PMPI_Win_complete(MPI_Win);
int PMPI_Win_create(void *, MPI_Aint, int, MPI_Info, MPI_Comm, MPI_Win *);
int PMPI_Win_create_c(void *, MPI_Aint, MPI_Aint, MPI_Info, MPI_Comm, MPI_Win *);
int PMPI_Win_create_dynamic(MPI_Info, MPI_Comm, MPI_Win *);
int PMPI_Win_create_errhandler(MPI_Win_errhandler_function *, MPI_Errhandler *);
int PMPI_Win_create_keyval(MPI_Win_copy_attr_function *, MPI_Win_delete_attr_function *, int *, void *);
int PMPI_Win_delete_attr(MPI_Win, int);
int PMPI_Win_detach(MPI_Win, const void *);
MPI_Win PMPI_Win_f2c(MPI_Fint);
int PMPI_Win_fence(int, MPI_Win);
int PMPI_Win_flush(int, MPI_Win);
int PMPI_Win_flush_all(MPI_Win);
int PMPI_Win_flush_local(int, MPI_Win);
int PMPI_Win_flush_local_all(MPI_Win);
int PMPI_Win_free(MPI_Win *);
int PMPI_Win_free_keyval(int *);
MPI_Win PMPI_Win_fromint(int);
int PMPI_Win_get_attr(MPI_Win, int, void *, int *);
int PMPI_Win_get_errhandler(MPI_Win, MPI_Errhandler *);
int PMPI_Win_get_group(MPI_Win, MPI_Group *);
int PMPI_Win_get_info(MPI_Win, MPI_Info *);
int PMPI_Win_get_name(MPI_Win, char *, int *);
int PMPI_Win_lock(int, int, int, MPI_Win);
int PMPI_Win_lock_all(int, MPI_Win);
int PMPI_Win_post(MPI_Group, int, MPI_Win);
int PMPI_Win_set_attr(MPI_Win, int, void *);
int PMPI_Win_set_errhandler(MPI_Win, MPI_Errhandler);
int PMPI_Win_set_info(MPI_Win, MPI_Info);
int PMPI_Win_set_name(MPI_Win, const char *);
int PMPI_Win_shared_query(MPI_Win, int, MPI_Aint *, int *, void *);
int PMPI_Win_shared_query_c(MPI_Win, int, MPI_Aint *, MPI_Aint *, void *);
int PMPI_Win_start(MPI_Group, int, MPI_Win);
int PMPI_Win_sync(MPI_Win);
int PMPI_Win_test(MPI_Win, int *);
int PMPI_Win_toint(MPI_Win);
int PMPI_Win_unlock(int, MPI_Win);
int PMPI_Win_unlock_all(MPI_Win);
int PMPI_Win_wait(MPI_Win);
double PMPI_Wtick(void);
double PMPI_Wtime(void);

#ifdef __cplusplus
}
#endif

#endif
