//! MPI over Dayfly's groups. As the crate `dayfly-mpi`, the library `libmpi.so.12` with the binary interface of MPICH:
//! programs that were linked with MPICH, Intel MPI or MVAPICH, and mpi4py's wheels, run with it unmodified. As the crate
//! `dayfly-mpi-abi`, the library `libmpi_abi.so.1` with the binary interface of the MPI standard.
//!
//! - [`face`] makes the symbols: every function is one entry of a table that the modules hold by subject.
//! - [`interface`] has the values by which the two binary interfaces differ. Nothing else depends on which one it is.
//! - [`handle`], [`pointer`], [`status`] and [`error`] are the types of the interface.
//! - [`state`] is initialisation: the world is the group of the invitation in the environment, or this process alone.
//! - [`communicator`], [`comm_create`], [`group`], [`attribute`], [`info`], [`errhandler`], [`topology`].
//! - [`datatype`] and [`pack`]: where elements lie in memory; [`room`] is for packed ones.
//! - [`request`] drives operations; [`point`], [`probe`], [`buffers`] and [`partitioned`] are messages, [`collective`] and
//!   [`op`] the rest.
//! - [`file`] is input and output.
//! - [`window`] is one-sided access.
//! - [`tools`] is the interface for tools.
//! - [`deprecated`], [`fortran`] and [`extension`] are what the standard has removed, what it has for Fortran, and what
//!   MPICH has beside it.
//! - [`abi`] is what programs ask of the binary interface itself.
//! - [`dynamic`] starts processes and connects worlds; [`realm`] is what their communicators lie over.

mod abi;
mod attribute;
mod buffers;
mod collective;
mod comm_create;
mod communicator;
mod datatype;
mod deprecated;
mod dynamic;
mod errhandler;
mod error;
#[cfg(face = "mpich")]
mod extension;
mod face;
mod file;
mod fortran;
mod group;
mod handle;
mod info;
mod inherited;
mod integer;
mod interface;
mod long_double;
mod op;
mod pack;
mod partitioned;
mod point;
mod pointer;
mod probe;
mod realm;
mod request;
mod room;
mod session;
mod state;
mod status;
mod tools;
mod topology;
mod window;
