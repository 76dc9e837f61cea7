//! MPI over Dayfly's groups: the library `libmpi.so.12` with the binary interface of MPICH. Programs that were linked
//! with MPICH, Intel MPI or MVAPICH, and mpi4py's wheels, run with it unmodified.
//!
//! - [`face`] makes the symbols: every function is one entry of a table that the modules hold by subject.
//! - [`handle`], [`pointer`], [`status`] and [`error`] are the types of the interface, with MPICH's values.
//! - [`state`] is initialisation: the world is the group of the invitation in the environment, or this process alone.
//! - [`communicator`], [`comm_create`], [`group`], [`attribute`], [`info`], [`errhandler`], [`topology`].
//! - [`datatype`] and [`pack`]: where elements lie in memory.
//! - [`request`] drives operations; [`point`] and [`probe`] are messages, [`collective`] and [`op`] the rest.
//! - [`file`] is input and output.
//! - [`window`] is one-sided access.
//! - [`dynamic`] starts processes and connects worlds; [`realm`] is what their communicators lie over.

mod attribute;
mod collective;
mod comm_create;
mod communicator;
mod datatype;
mod dynamic;
mod errhandler;
mod error;
mod face;
mod file;
mod group;
mod handle;
mod info;
mod inherited;
mod integer;
mod long_double;
mod op;
mod pack;
mod point;
mod pointer;
mod probe;
mod realm;
mod request;
mod session;
mod state;
mod status;
mod topology;
mod window;
