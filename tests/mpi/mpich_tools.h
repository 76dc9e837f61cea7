/* Facts of MPICH's binary interface for tools. */
#ifndef MPICH_TOOLS_FACTS_H
#define MPICH_TOOLS_FACTS_H

typedef struct tool_enum *MPI_T_enum;
typedef struct tool_cvar_handle *MPI_T_cvar_handle;
typedef struct tool_pvar_handle *MPI_T_pvar_handle;
typedef struct tool_pvar_session *MPI_T_pvar_session;

extern struct tool_pvar_handle *const MPI_T_PVAR_ALL_HANDLES;

#define MPI_T_ENUM_NULL ((MPI_T_enum)0)
#define MPI_T_CVAR_HANDLE_NULL ((MPI_T_cvar_handle)0)
#define MPI_T_BIND_NO_OBJECT 9700
#define MPI_T_PVAR_CLASS_LEVEL 241
#define MPI_T_PVAR_CLASS_COUNTER 246
#define MPI_T_ERR_NOT_INITIALIZED 60
#define MPI_T_ERR_INVALID_INDEX 62
#define MPI_T_ERR_INVALID_HANDLE 64
#define MPI_T_ERR_INVALID_SESSION 67
#define MPI_T_ERR_CVAR_SET_NEVER 69
#define MPI_T_ERR_PVAR_NO_STARTSTOP 70
#define MPI_T_ERR_PVAR_NO_WRITE 71
#define MPI_T_ERR_INVALID_NAME 73
#define MPI_T_ERR_NOT_ACCESSIBLE 79

int MPI_T_init_thread(int, int *);
int MPI_T_finalize(void);
int MPI_T_cvar_get_num(int *);
int MPI_T_cvar_get_info(int, char *, int *, int *, MPI_Datatype *, MPI_T_enum *, char *, int *, int *, int *);
int MPI_T_cvar_get_index(const char *, int *);
int MPI_T_cvar_handle_alloc(int, void *, MPI_T_cvar_handle *, int *);
int MPI_T_cvar_handle_free(MPI_T_cvar_handle *);
int MPI_T_cvar_read(MPI_T_cvar_handle, void *);
int MPI_T_cvar_write(MPI_T_cvar_handle, const void *);
int MPI_T_pvar_get_num(int *);
int MPI_T_pvar_get_index(const char *, int, int *);
int MPI_T_pvar_session_create(MPI_T_pvar_session *);
int MPI_T_pvar_session_free(MPI_T_pvar_session *);
int MPI_T_pvar_handle_alloc(MPI_T_pvar_session, int, void *, MPI_T_pvar_handle *, int *);
int MPI_T_pvar_handle_free(MPI_T_pvar_session, MPI_T_pvar_handle *);
int MPI_T_pvar_start(MPI_T_pvar_session, MPI_T_pvar_handle);
int MPI_T_pvar_read(MPI_T_pvar_session, MPI_T_pvar_handle, void *);
int MPI_T_pvar_readreset(MPI_T_pvar_session, MPI_T_pvar_handle, void *);
int MPI_T_pvar_reset(MPI_T_pvar_session, MPI_T_pvar_handle);
int MPI_T_category_get_num(int *);
int MPI_T_category_get_index(const char *, int *);
int MPI_T_category_get_info(int, char *, int *, char *, int *, int *, int *, int *);
int MPI_T_category_get_cvars(int, int, int *);
int MPI_T_event_get_num(int *);
int MPI_T_event_get_index(const char *, int *);
int MPI_T_source_get_num(int *);

#endif
