"""Deployments, features and the teacher's seconds, for students: one of test, cat, syn, synA, synB.

synA was drawn with 0.25 in place of 0.45 in ``_ffns`` of pinn/training/synthetic.py.
"""
import yaml,torch,numpy as np,time,sys,pickle
from pathlib import Path
torch.set_num_threads(1)
from pinn.training.synthetic import synthetic_deployments, catalog_deployments
from pinn.specs.gpu import load_gpu
from pinn.kernels.composition import compose_many
from pinn.kernels.surrogates import KernelSurrogates
from pinn.physics.batch_sums import sample_batches
from pinn.training.teacher import features_of_batches, group_seconds, saved_scalars
from pinn.physics.descriptors import embed
from pinn.coefficients.trained_network import load_checkpoint
sc=saved_scalars(load_checkpoint('checkpoints/pinn.safetensors').metadata['scalars'])
g=[load_gpu(n) for n in yaml.safe_load(open('conf/kernels/on.yaml'))['settings']['gpus']]
k=KernelSurrogates.load(Path('checkpoints/kernels/all'))
def make(name,d,seed):
    fs,ss=[],[]
    for i in range(0,len(d),250):
        b=[sample_batches(seed+j) for j in range(i,min(i+250,len(d)))]
        p=compose_many(k,d[i:i+250],b); f=features_of_batches(d[i:i+250],b)
        fs.append(torch.tensor(f,dtype=torch.float32)); ss.append(torch.tensor(group_seconds(sc,p,f),dtype=torch.float32))
    free,rates=embed(d)
    torch.save({'free':torch.tensor(free),'rates':torch.tensor(rates),'f':torch.cat(fs),'s':torch.cat(ss),'model':[x.model.name for x in d],'gpu':[x.gpu.name for x in d]},f'build/students_{name}.pt')
what=sys.argv[1]
t=time.time()
if what=='test': make('test',catalog_deployments(1500,g,77),5_000_000)
elif what=='cat': make('cat',catalog_deployments(6000,g,2),24_000)
elif what=='syn': make('syn',synthetic_deployments(24000,g,1),0)
elif what=='synA': make('synA',synthetic_deployments(24000,g,1),0)
elif what=='synB': make('synB',synthetic_deployments(40000,g,1),0)
print(what,time.time()-t)
